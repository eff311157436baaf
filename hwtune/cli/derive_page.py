"""hwtune derive-page: the page vLLM will pick, before anything is loaded."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from hwtune.domain.deployment import Deployment
from hwtune.domain.errors import UsageError
from hwtune.domain.page import page_options
from hwtune.domain.units import parse_bytes
from hwtune.domain.vllm_flags import deployment_from_flags
from hwtune.io.model_config import load_model
from hwtune.io.profiles import load_profile
from hwtune.report.derivation import show_options
from hwtune.report.tables import Format


def derive_page(
    ctx: typer.Context,
    model: Annotated[
        str, typer.Argument(help="A model directory, a config.json or a Hugging Face id.")
    ],
    profile: Annotated[str, typer.Option(help="Hardware profile, by name or path.")] = "sm_90",
    explain: Annotated[bool, typer.Option(help="Show every step with its source.")] = False,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,
    vllm_version: Annotated[
        str | None, typer.Option(help="vLLM release; the newest known when absent.")
    ] = None,
    kv_cache_memory: Annotated[
        str | None, typer.Option(help="KV cache of one rank, e.g. 8GiB; gives the capacity.")
    ] = None,
    request_tokens: Annotated[
        int | None, typer.Option(min=1, help="Length of the requests that capacity counts.")
    ] = None,
) -> None:
    """Derive the KV-cache page of a hybrid model. vLLM's own flags may follow."""
    deployment = _deployment(ctx.args, vllm_version)
    options = page_options(
        load_model(local_model(model)),
        deployment,
        load_profile(profile),
        memory_bytes=_memory(kv_cache_memory),
        request_tokens=request_tokens,
    )
    typer.echo(show_options(options, format, explain=explain))


def local_model(reference: str) -> str:
    """A path for a reference that may be a Hugging Face id."""
    from hwtune.adapters.hub import resolve_model

    return str(resolve_model(reference))


def _deployment(flags: list[str], version: str | None) -> Deployment:
    deployment, notes = deployment_from_flags(flags)
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    return replace(deployment, version=version)


def _memory(text: str | None) -> int | None:
    if text is None:
        return None
    size = parse_bytes(text)
    if size is None:
        message = f"--kv-cache-memory {text}: expected a size such as 8GiB"
        raise UsageError(message)
    return size
