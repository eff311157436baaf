"""What derive-page does for each kind of question: load, compute, render."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from hwtune.domain import explain
from hwtune.domain.batch import batch_record, error_record, located
from hwtune.domain.deployment import Deployment
from hwtune.domain.errors import InputError, UsageError
from hwtune.domain.hardware import HardwareProfile
from hwtune.domain.inverse import MAX_CHANGES, explain_observed
from hwtune.domain.lints import lint_page
from hwtune.domain.matrix import derive_matrix, parse_axes
from hwtune.domain.model import ModelShape, StateRequest
from hwtune.domain.page import PageOptions, page_options
from hwtune.domain.page_options import kernel_multiple, profile_deployment
from hwtune.domain.page_rules_backends import backend_sizes
from hwtune.domain.page_rules_versions import NEWEST, select_rule
from hwtune.families.sizes import known_sizes
from hwtune.io.batch import read_cases
from hwtune.io.model_config import load_model, weight_bytes
from hwtune.report.derivation import Answer, show_answer
from hwtune.report.matrix import checks_table, explanations_table, matrix_table
from hwtune.report.tables import Format, render, table_records


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One model on one machine, and how to print the answer."""

    reference: str
    """Path of the model."""
    deployment: Deployment
    profile: HardwareProfile
    format: Format
    remarks: tuple[str, ...] = ()
    """What was assumed about the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the user said about memory, in bytes per rank."""

    kv_cache: int | None
    device: int | None
    weights: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What else the user wants to know."""

    explain: bool
    request_tokens: int | None
    prompt_tokens: int | None
    why_not: int | None


def configured(
    profile: HardwareProfile, engine: str | None, alignment: int | None
) -> HardwareProfile:
    """The profile with the engine and the default granularity that the user names."""
    if engine is not None:
        profile = replace(profile, engine=engine)  # type: ignore[arg-type]
    if alignment is not None:
        profile = replace(profile, default_alignment_tokens=alignment, base_backend="")
    return profile


def placed(deployment: Deployment, profile: HardwareProfile) -> Deployment:
    """The deployment on the profile's platform."""
    return profile_deployment(deployment, profile)


def page_answer(request: Request, memory: Memory, asked: Questions) -> str:
    """The default question: which page, and what does it cost."""
    model = load_model(request.reference)
    size, remarks = kv_memory(request, memory)
    if asked.request_tokens is not None and size is None:
        message = "--request-tokens needs a capacity to count in: give --kv-cache-memory"
        raise UsageError(message)
    remarks = (*request.remarks, *remarks)
    options = page_options(
        model,
        request.deployment,
        request.profile,
        memory_bytes=size,
        request_tokens=asked.request_tokens,
    )
    if asked.why_not is not None and options.default.page.hybrid:
        remarks += (explain.why_not(options, asked.why_not, size),)
    lints = lint_page(
        options.required.page,
        kernel_multiple=kernel_multiple(request.profile),
        prompt_tokens=asked.prompt_tokens,
        fits=options.required.capacity,
    )
    answer = Answer(options=options, lints=lints, remarks=remarks)
    if asked.explain and options.default.page.hybrid:
        answer = _explained(answer, options, request.profile.required_alignment_tokens)
    return show_answer(replace(answer, explain=asked.explain), request.format)


def _explained(answer: Answer, options: PageOptions, alignment: int) -> Answer:
    page = options.required.page
    return replace(
        answer,
        movements=explain.movements(page, alignment),
        equivalents=explain.equivalents(page, alignment),
        neighbours=explain.neighbours(options),
    )


def kv_memory(request: Request, memory: Memory) -> tuple[int | None, tuple[str, ...]]:
    """Bytes for the KV cache, and how they were found."""
    if memory.kv_cache is not None:
        return memory.kv_cache, ()
    device = memory.device or request.profile.memory_bytes
    share = request.deployment.gpu_memory_utilization
    if share is None or (device is None and memory.device is None):
        sizes = {"--device-memory": memory.device, "--weight-bytes": memory.weights}
        for flag, size in sizes.items():
            if size is not None:
                missing = "--gpu-memory-utilization" if share is None else "--device-memory"
                message = f"{flag} needs {missing}"
                raise UsageError(message)
        return None, ()
    total = weight_bytes(request.reference)
    ranks = request.deployment.tensor_parallel_size * request.deployment.pipeline_parallel_size
    weights = memory.weights or (total // ranks if total else None)
    if device is None or weights is None:
        return None, ("no capacity: give --weight-bytes or --kv-cache-memory",)
    left = int(device * share) - weights
    if left <= 0:
        return None, ("no capacity: the weights leave no memory for the cache",)
    note = "capacity is an upper bound: activations and captured graphs are not subtracted"
    return left, (note,)


def check_answer(request: Request, python: str | None) -> tuple[str, bool]:
    """(table, whether the installed vLLM resolves what was derived)."""
    from hwtune.adapters.vllm.check import Variant, check_with_vllm

    model = load_model(request.reference)
    options = page_options(model, request.deployment, request.profile)
    needed, asked = request.profile.required_alignment_tokens, request.deployment.block_size
    variants = [
        Variant(
            page=options.default.page,
            backend_multiple=_smallest_kernel_block(request),
            block_size=asked,
        ),
        Variant(page=options.required.page, backend_multiple=needed, block_size=asked or needed),
    ]
    result = check_with_vllm(Path(request.reference), variants, python)
    title = f"Derived, and resolved by vLLM {result.version}"
    table = checks_table([(c.field, c.derived, c.resolved, c.agrees) for c in result.checks], title)
    return render(table, request.format), all(check.agrees for check in result.checks)


def _smallest_kernel_block(request: Request) -> int:
    """What the profile's own backend declares, in tokens."""
    if not request.profile.base_backend:
        return request.profile.default_alignment_tokens
    version = select_rule(request.deployment.engine, request.deployment.version).version
    return backend_sizes(request.profile.base_backend, version).smallest


def matrix_answer(request: Request, words: list[str], parquet: Path | None) -> str:
    """One row per combination of the axes, also written to ``parquet`` if that is given."""
    axes = parse_axes([word for text in words for word in text.split()])
    model = load_model(request.reference)
    alignment = request.profile.default_alignment_tokens
    table = matrix_table(derive_matrix(model, request.deployment, alignment, axes))
    if parquet is not None:
        from hwtune.adapters.parquet import write_parquet

        write_parquet(table_records(table), parquet)
    return render(table, request.format)


def observed_answer(request: Request, observed: int, padding: float | None) -> tuple[str, bool]:
    """(table, whether anything prints the page)."""
    model = load_model(request.reference)
    models = [("as asked", model)]
    if model.family == "gdn":
        models += [(name, shape) for name, shape in known_sizes() if not _same_size(shape, model)]
    alignment = request.profile.default_alignment_tokens
    found = explain_observed(models, request.deployment, alignment, observed, padding)
    if not found and padding is not None:
        found = explain_observed(
            models[:1], request.deployment, alignment, observed, padding, MAX_CHANGES + 1
        )
    shown = f"{observed}" if padding is None else f"{observed} with {padding} % padding"
    if not found and request.format is Format.TABLE:
        return f"Nothing near this deployment prints a page of {shown}.", False
    title = f"What prints a page of {shown}, fewest changes first"
    return render(explanations_table(found, title), request.format), bool(found)


def _same_size(shape: ModelShape, model: ModelShape) -> bool:
    """Whether a published size has the model's attention and state, so that it explains nothing."""
    if model.recurrent is None or shape.recurrent is None:
        return False
    one = StateRequest(
        tensor_parallel_size=1,
        num_speculative_tokens=0,
        model_dtype="bfloat16",
        conv_dtype="bfloat16",
        ssm_dtype="float32",
        version=NEWEST,
    )
    mine, theirs = model.attention, shape.attention
    heads = (mine.num_kv_heads, mine.head_size) == (theirs.num_kv_heads, theirs.head_size)
    return heads and shape.recurrent.state_tensors(one) == model.recurrent.state_tensors(one)


def batch_records(reference: str, version: str | None) -> Iterator[dict[str, Any]]:
    """The answer to each case of a JSONL file; an error carries its line."""
    load = cache(load_model)
    for line, case in read_cases(reference):
        record = (
            error_record(None, case)
            if isinstance(case, InputError)
            else batch_record(case, version, load)
        )
        yield located(record, line)
