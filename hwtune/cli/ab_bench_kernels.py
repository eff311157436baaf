"""``hwtune ab-bench kernels``: our kernels beside vLLM's, each alone."""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer

from hwtune.domain.errors import ANSWER_IS_NO, UsageError
from hwtune.domain.kernel_static import StaticShape, faults
from hwtune.domain.units import LARGEST_SIZE
from hwtune.report.tables import Format

_DEFAULT_TARGETS = ("sm_90", "gfx942")


def kernels(
    static: Annotated[
        bool, typer.Option("--static", help="Compile and count; needs no device.")
    ] = False,
    target: Annotated[
        list[str] | None, typer.Option(help="Device to compile for, e.g. sm_90. Repeatable.")
    ] = None,
    shape: Annotated[
        str, typer.Option(help="Query heads/KV heads/head size of the layer.")
    ] = "24/4/256",
    page: Annotated[int, typer.Option(help="Tokens per page.")] = 832,
    form: Annotated[Format, typer.Option("--format", help="Result on standard output.")] = (
        Format.TABLE
    ),
) -> None:
    """Compile our kernels and vLLM's generic ones for a target, and count what came out.

    The target's profile says with which constants ours are launched. Exit status 0 done, 1 one of
    ours spills, divides, loads narrowly or has more work than the generic kernel, 3 bad input,
    5 torch, Triton or vLLM is missing, 6 the compiler failed.
    """
    from hwtune.adapters.kernel_static import compile_static
    from hwtune.report.kernel_static import to_text

    if not static:
        message = "kernels are not timed by this release; give --static to compile and count"
        raise UsageError(message)
    targets = tuple(dict.fromkeys(target or _DEFAULT_TARGETS))
    layer = _shape(shape, page)
    report = compile_static(targets, layer, {name: _tunings(name) for name in targets})
    sys.stdout.write(to_text(report, form))
    if faults(report):
        raise typer.Exit(ANSWER_IS_NO)


def _shape(text: str, page: int) -> StaticShape:
    numbers = re.fullmatch(r"(\d{1,4})/(\d{1,4})/(\d{1,4})", text)
    if numbers is None:
        message = f"--shape {text}: expected query heads/KV heads/head size, e.g. 24/4/256"
        raise UsageError(message)
    heads, kv_heads, size = map(int, numbers.groups())
    if not kv_heads or heads % kv_heads:
        message = f"--shape {text}: {heads} query heads do not divide among {kv_heads} KV heads"
        raise UsageError(message)
    if not 1 <= page <= LARGEST_SIZE:
        message = f"--page {page}: must be from 1 to {LARGEST_SIZE}"
        raise UsageError(message)
    return StaticShape(num_heads=heads, num_kv_heads=kv_heads, head_size=size, page=page)


def _tunings(target: str) -> dict[str, dict[str, int]]:
    """The launch constants in the target's profile; none where it has no profile."""
    from hwtune.io.profiles import load_profile, profile_names

    if target not in profile_names():
        return {}
    return {k.implementation: k.tuning for k in load_profile(target).kernels if k.tuning}
