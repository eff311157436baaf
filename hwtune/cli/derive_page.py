"""hwtune derive-page: the page vLLM will pick, before anything is loaded."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from hwtune.cli import derive_page_options as option
from hwtune.cli.given import on_command_line, refuse_others
from hwtune.domain.deployment import Deployment
from hwtune.domain.errors import ANSWER_IS_NO, InputError, UsageError
from hwtune.domain.units import parse_bytes
from hwtune.domain.vllm_command import split_command
from hwtune.domain.vllm_flags import deployment_from_flags, misspelt_flags
from hwtune.io.profiles import load_profile
from hwtune.report.tables import Format

if TYPE_CHECKING:
    from hwtune.cli import derive_page_modes as modes

_ENGINES = ("vllm", "vllm-ascend")
_DEFAULT_PROFILE = "sm_90"
_ASSUMED = (
    f"note: no --profile given, so {_DEFAULT_PROFILE} is assumed, a common GPU that "
    "runs vLLM's own kernels; hwtune profiles list names the others"
)
_LONGEST_REFERENCE = 4096


def derive_page(
    ctx: typer.Context,
    model: option.ModelReference = None,
    profile: option.Profile = None,
    explain: option.Explain = False,
    format: option.OutputFormat = Format.TABLE,
    vllm_version: option.Version = None,
    engine: option.Engine = None,
    alignment: option.Alignment = None,
    prefill_checkpoint_tokens: option.Checkpoint = None,
    kv_cache_memory: option.CacheMemory = None,
    device_memory: option.DeviceMemory = None,
    weight_bytes: option.WeightBytes = None,
    request_tokens: option.RequestTokens = None,
    prompt_tokens: option.PromptTokens = None,
    why_not: option.WhyNot = None,
    matrix: option.MatrixAxes = None,
    parquet: option.Parquet = None,
    observed: option.Observed = None,
    padding: option.Padding = None,
    check_with_vllm: option.CheckWithVllm = False,
    check_python: option.CheckPython = None,
    batch: option.Batch = None,
) -> None:
    """Derive the KV-cache page of a hybrid model.

    A vLLM command line can be pasted whole: vllm serve MODEL and its flags, in any order.
    """
    from hwtune.cli import derive_page_modes as modes

    _one_question(ctx, observed, padding)
    if parquet is not None and not matrix:
        message = "--parquet needs --matrix"
        raise UsageError(message)
    if batch is not None:
        _print_batch(batch, vllm_version)
        return
    hardware = modes.configured(
        load_profile(profile or _DEFAULT_PROFILE), _engine(engine), alignment
    )
    reference, flags = split_command([*([] if model is None else [model]), *ctx.args])
    deployment = deployment_of(flags, vllm_version, hardware.engine, prefill_checkpoint_tokens)
    request = modes.Request(
        reference=local_model(reference),
        deployment=modes.placed(deployment, hardware),
        profile=hardware,
        format=format,
        remarks=() if profile else (_ASSUMED,),
    )
    if matrix:
        typer.echo(modes.matrix_answer(request, matrix, parquet))
    elif check_with_vllm or check_python is not None:
        _print(*modes.check_answer(request, check_python))
    elif observed is not None:
        _print(*modes.observed_answer(request, observed, padding))
    else:
        memory = memory_of(kv_cache_memory, device_memory, weight_bytes)
        asked = modes.Questions(
            explain=explain,
            request_tokens=request_tokens,
            prompt_tokens=prompt_tokens,
            why_not=why_not,
        )
        typer.echo(modes.page_answer(request, memory, asked))


def local_model(reference: str) -> str:
    """A path for a reference that may be a Hugging Face id."""
    from hwtune.adapters.hub import resolve_model

    if not reference.strip() or len(reference) > _LONGEST_REFERENCE:
        message = f"{reference[:40]!r}: no model; give a directory, a config.json or a model id"
        raise UsageError(message)
    try:
        return str(resolve_model(reference))
    except RuntimeError as error:  # ~name of nobody, or a loop of links
        message = f"{reference[:200]}: cannot be a path: {error}"
        raise InputError(message) from None


def deployment_of(
    flags: Sequence[str], version: str | None, engine: str, checkpoint: int | None
) -> Deployment:
    """The deployment that vLLM's flags describe; remarks about them go to standard error."""
    from hwtune.adapters.vllm.surroundings import cpu_features

    deployment, notes = deployment_from_flags(flags)
    for note in (*notes, *misspelt_flags(flags)):
        typer.echo(f"note: {note}", err=True)
    if version is None:
        from hwtune.adapters.vllm.discovery import installed_version

        version = installed_version(engine)
    return replace(
        deployment,
        version=version,
        prefill_checkpoint_tokens=checkpoint,
        cpu_features=cpu_features(),
    )


_QUESTIONS: dict[str, tuple[str, ...]] = {
    "batch": ("vllm_version",),
    "matrix": ("parquet",),
    "observed": ("padding",),
    "explain": (),
    "check_with_vllm": ("check_python",),
}
"""Parameter that asks another question -> parameters that only it uses."""
_SERVER = (
    *("model", "profile", "format", "vllm_version", "engine", "alignment"),
    "prefill_checkpoint_tokens",
)


def _one_question(ctx: typer.Context, observed: int | None, padding: float | None) -> None:
    """Raises UsageError for two questions at once, or what the one that is asked does not use."""
    asked = [name for name in _QUESTIONS if on_command_line(ctx, name)]
    if on_command_line(ctx, "check_python") and "check_with_vllm" not in asked:
        asked.append("check_with_vllm")
    flags = ["--" + name.replace("_", "-") for name in asked]
    if len(asked) > 1:
        message = f"{' and '.join(flags)} do not go together: one question at a time"
        raise UsageError(message)
    if asked and asked[0] != "explain":
        (name,), (flag,) = asked, flags
        taken = (name, *_QUESTIONS[name], *(() if name == "batch" else _SERVER))
        why = (
            f"{flag} is another question"
            if name != "batch"
            else "--batch and a server do not go together: each case names its own"
        )
        refuse_others(ctx, taken, why, flags=name != "batch")
    if padding is not None and observed is None:
        message = "--padding needs --observed"
        raise UsageError(message)
    if padding is not None and not 0 <= padding < math.inf:
        message = f"--padding {padding}: expected a percentage from 0 up"
        raise UsageError(message)


def _engine(engine: str | None) -> str | None:
    if engine is not None and engine not in _ENGINES:
        message = f"--engine {engine}: expected {' or '.join(_ENGINES)}"
        raise UsageError(message)
    return engine


def _size(flag: str, text: str | None) -> int | None:
    if text is None:
        return None
    size = parse_bytes(text)
    if size is None:
        message = f"{flag} {text}: expected a size such as 8GiB"
        raise UsageError(message)
    return size


def memory_of(cache: str | None, device: str | None, weights: str | None) -> modes.Memory:
    """What the options say about memory, in bytes.

    Raises:
        UsageError: no sizes, or more than the size of the cache, which is all that counts.
    """
    from hwtune.cli import derive_page_modes as modes

    for flag, text in (("--device-memory", device), ("--weight-bytes", weights)):
        if cache is not None and text is not None:
            message = f"--kv-cache-memory and {flag} do not go together: the first says it all"
            raise UsageError(message)
    return modes.Memory(
        kv_cache=_size("--kv-cache-memory", cache),
        device=_size("--device-memory", device),
        weights=_size("--weight-bytes", weights),
    )


def _print(text: str, yes: bool) -> None:
    """Prints an answer to a yes-or-no question; no is exit status 1."""
    typer.echo(text)
    if not yes:
        raise typer.Exit(ANSWER_IS_NO)


def _print_batch(reference: str, version: str | None) -> None:
    from hwtune.cli import derive_page_modes as modes

    for record in modes.batch_records(reference, version):
        typer.echo(json.dumps(record, allow_nan=False))
