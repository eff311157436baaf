"""hwtune derive-page: the page vLLM will pick, before anything is loaded."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated

import typer

from hwtune.cli import derive_page_modes as modes
from hwtune.domain.deployment import Deployment
from hwtune.domain.errors import ANSWER_IS_NO, UsageError
from hwtune.domain.units import parse_bytes
from hwtune.domain.vllm_flags import deployment_from_flags, misspelt_flags
from hwtune.io.profiles import load_profile
from hwtune.report.tables import Format

_ENGINES = ("vllm", "vllm-ascend")


def derive_page(
    ctx: typer.Context,
    model: Annotated[
        str | None, typer.Argument(help="A model directory, a config.json or a Hugging Face id.")
    ] = None,
    profile: Annotated[str, typer.Option(help="Hardware profile, by name or path.")] = "sm_90",
    explain: Annotated[
        bool, typer.Option("--explain", help="Every step with its source, and what moved the page.")
    ] = False,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,
    vllm_version: Annotated[
        str | None, typer.Option(help="Release of the engine; else the installed or newest known.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="vllm or vllm-ascend; else the profile's.")
    ] = None,
    alignment: Annotated[
        int | None, typer.Option(min=1, help="Tokens the backend's pages are multiples of.")
    ] = None,
    prefill_checkpoint_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Prefill-checkpoint alignment of the state layers (0.33): 64."),
    ] = None,
    kv_cache_memory: Annotated[
        str | None, typer.Option(help="KV cache of one rank, e.g. 8GiB; gives the capacity.")
    ] = None,
    device_memory: Annotated[
        str | None,
        typer.Option(help="Memory of one device; with --gpu-memory-utilization and the weights."),
    ] = None,
    weight_bytes: Annotated[
        str | None, typer.Option(help="Weights of one rank; else from the safetensors index.")
    ] = None,
    request_tokens: Annotated[
        int | None, typer.Option(min=1, help="Length of the requests that capacity counts.")
    ] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Length of the prompts prefix caching should serve.")
    ] = None,
    why_not: Annotated[
        int | None, typer.Option(min=1, help="Say why a page of that many tokens is not the one.")
    ] = None,
    matrix: Annotated[
        list[str] | None,
        typer.Option(help="Axes such as 'tp=1,2 kv=auto,fp8 align=16,64'; prints one row each."),
    ] = None,
    observed: Annotated[
        int | None, typer.Option(min=1, help="A page a server printed: which deployments print it?")
    ] = None,
    padding: Annotated[
        float | None, typer.Option(help="The padding in percent printed with --observed.")
    ] = None,
    check_with_vllm: Annotated[
        bool, typer.Option("--check-with-vllm", help="Compare with the installed vLLM's own code.")
    ] = False,
    check_python: Annotated[
        str | None, typer.Option(help="The Python that has vLLM, for --check-with-vllm.")
    ] = None,
    batch: Annotated[
        str | None, typer.Option(help="JSONL of cases (or -): one JSON answer per line.")
    ] = None,
) -> None:
    """Derive the KV-cache page of a hybrid model.

    vLLM's own flags may follow the model: a vllm serve command line can be pasted behind it.
    """
    if batch is not None:
        _print_batch(batch, vllm_version)
        return
    flags = list(ctx.args)
    hardware = modes.configured(load_profile(profile), _engine(engine), alignment)
    deployment = replace(
        _deployment(flags, vllm_version, hardware.engine),
        prefill_checkpoint_tokens=prefill_checkpoint_tokens,
    )
    request = modes.Request(
        reference=local_model(_model(model, flags)),
        deployment=modes.placed(deployment, hardware),
        profile=hardware,
        format=format,
    )
    if matrix:
        typer.echo(modes.matrix_answer(request, matrix))
    elif check_with_vllm or check_python is not None:
        _print_check(request, check_python)
    elif observed is not None:
        _print_observed(request, observed, padding)
    else:
        memory = modes.Memory(
            kv_cache=_size("--kv-cache-memory", kv_cache_memory),
            device=_size("--device-memory", device_memory),
            weights=_size("--weight-bytes", weight_bytes),
        )
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

    return str(resolve_model(reference))


def _model(model: str | None, flags: list[str]) -> str:
    """The model: the argument, or vLLM's --model among the pasted flags."""
    if model is not None and not model.startswith("-"):
        return model
    for index, flag in enumerate(flags):
        name, equals, value = flag.partition("=")
        if name == "--model" and (equals or index + 1 < len(flags)):
            return value if equals else flags[index + 1]
    message = "the model is missing; put it before vLLM's flags"
    raise UsageError(message)


def _deployment(flags: list[str], version: str | None, engine: str) -> Deployment:
    deployment, notes = deployment_from_flags(flags)
    for note in (*notes, *misspelt_flags(flags)):
        typer.echo(f"note: {note}", err=True)
    if version is None:
        from hwtune.adapters.installed_vllm import installed_version

        version = installed_version(engine)
    return replace(deployment, version=version)


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


def _print_observed(request: modes.Request, observed: int, padding: float | None) -> None:
    text, found = modes.observed_answer(request, observed, padding)
    typer.echo(text)
    if not found:
        raise typer.Exit(ANSWER_IS_NO)


def _print_check(request: modes.Request, python: str | None) -> None:
    text, agrees = modes.check_answer(request, python)
    typer.echo(text)
    if not agrees:
        raise typer.Exit(ANSWER_IS_NO)


def _print_batch(reference: str, version: str | None) -> None:
    for record in modes.batch_records(reference, version):
        typer.echo(json.dumps(record, allow_nan=False))
