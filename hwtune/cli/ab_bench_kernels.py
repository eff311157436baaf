"""``hwtune ab-bench kernels``: our kernels beside vLLM's, each alone."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Sequence
from typing import Annotated, Literal

import typer

from hwtune.cli.ab_bench_output import say
from hwtune.cli.given import refuse_given, refuse_others
from hwtune.domain.errors import ANSWER_IS_NO, UsageError
from hwtune.domain.kernel_static import StaticShape, faults
from hwtune.domain.kernel_timing import CallCase, judge_sample, possible_cases
from hwtune.domain.units import LARGEST_SIZE
from hwtune.report.tables import Format

_DEFAULT_TARGETS = ("sm_90", "gfx942")
_DEFAULT_QUERIES = (1, 512, 2048)
_DEFAULT_CONTEXTS = (2048, 8192)


def kernels(
    ctx: typer.Context,
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
    kernel: Annotated[
        list[str] | None,
        typer.Option(help="To time: prefill.cpu, or my_module:function. Repeatable."),
    ] = None,
    query: Annotated[
        list[int] | None, typer.Option(help="New tokens per sequence; 1 is decode. Repeatable.")
    ] = None,
    context: Annotated[
        list[int] | None, typer.Option(help="Tokens of every sequence. Repeatable.")
    ] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Sequences. Repeatable.")] = None,
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32"], typer.Option(help="Of Q, K, V and output.")
    ] = "bfloat16",
    pairs: Annotated[
        int, typer.Option(help="Times each pair is measured; 0 only compares outputs.")
    ] = 15,
    profile: Annotated[
        str | None, typer.Option(help="Launch constants and bandwidth of this profile.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of each interval.")] = 0.95,
    form: Annotated[Format, typer.Option("--format", help="Result on standard output.")] = (
        Format.TABLE
    ),
) -> None:
    """Time our kernels alone against vLLM's, or with --static compile both and count.

    Timed on the device that is here: every kernel first against float64 attention, then in
    alternating pairs with its baseline; on a GPU as graph replay, with L2 warm and cold. --static
    compiles for targets that need not be here, with the constants of their profiles.

    Exit status 0 done; 1 a kernel computes something else, or with --static one of ours spills,
    divides, loads narrowly or has more work than the generic kernel; 3 bad input; 5 torch, Triton
    or vLLM is missing; 6 the compiler or the device failed.
    """
    layer = layer_of(shape, page)
    if static:
        why = "--static compiles and runs nothing"
        refuse_others(ctx, ("static", "target", "shape", "page", "form"), why)
        _static(layer, tuple(dict.fromkeys(target or _DEFAULT_TARGETS)), form)
        return
    refuse_given(ctx, ("target",), "without --static: kernels are timed here")
    _check_numbers(pairs, confidence)
    if not pairs:
        refuse_given(ctx, ("confidence",), "with --pairs 0: nothing is timed")
    grid = [
        CallCase(
            num_heads=layer.num_heads,
            num_kv_heads=layer.num_kv_heads,
            head_size=layer.head_size,
            page=page,
            batch=sequences,
            query=new,
            context=length,
            dtype=dtype,
        )
        for new, length, sequences in itertools.product(
            query or _DEFAULT_QUERIES, context or _DEFAULT_CONTEXTS, batch or (1,)
        )
    ]
    cases, impossible = possible_cases(grid)
    if impossible and query:
        pairs_left_out = ", ".join(f"query {new} in context {length}" for new, length in impossible)
        say(f"left out, more new tokens than context: {pairs_left_out}")
    _timed(cases, kernel or (), profile, pairs, confidence, form)


def _static(layer: StaticShape, targets: Sequence[str], form: Format) -> None:
    from hwtune.adapters.kernel_static import compile_static
    from hwtune.report.kernel_static import to_text

    report = compile_static(targets, layer, {name: _tunings(name, layer) for name in targets})
    sys.stdout.write(to_text(report, form))
    if faults(report):
        raise typer.Exit(ANSWER_IS_NO)


def _timed(
    cases: Sequence[CallCase],
    kernels: Sequence[str],
    profile: str | None,
    pairs: int,
    confidence: float,
    form: Format,
) -> None:
    from hwtune.adapters.kernel_bench.run import device_here, samples
    from hwtune.domain.kernel import tuning_for
    from hwtune.io.profiles import load_profile
    from hwtune.report.kernel_timing import to_text

    _, device = device_here()
    found = None if profile is None else load_profile(profile)
    bandwidth = None if found is None else found.memory_bandwidth_bytes_per_s
    size, page = cases[0].head_size, cases[0].page  # one layer: only lengths differ
    kernels_of = () if found is None else found.kernels
    tunings = {k.implementation: tuning_for(k, size, page) for k in kernels_of}
    providers = {k.implementation: k.provider for k in kernels_of}
    rows = []
    for sample in samples(cases, kernels, tunings, pairs, providers):
        row = judge_sample(sample, confidence=confidence, bandwidth_bytes_per_s=bandwidth)
        say(f"{sample.kernel} against {sample.baseline}: {row.verdict}")
        rows.append(row)
    if not rows:
        message = "none of the kernels is for these queries: decode takes --query 1, prefill more"
        raise UsageError(message)
    sys.stdout.write(to_text(rows, form, device=device, confidence=confidence))
    if any(row.verdict.startswith("no ratio") for row in rows):
        raise typer.Exit(ANSWER_IS_NO)


def _check_numbers(pairs: int, confidence: float) -> None:
    if pairs < 0:
        message = f"--pairs {pairs}: must be 0 or more"
        raise UsageError(message)
    if not 0.5 <= confidence < 1:
        message = f"--confidence {confidence}: must lie between 0.5 and 1"
        raise UsageError(message)


def layer_of(text: str, page: int) -> StaticShape:
    """The layer of ``--shape`` and ``--page``.

    Raises:
        UsageError: one of them is not what it should be.
    """
    numbers = re.fullmatch(r"(\d{1,4})/(\d{1,4})/(\d{1,4})", text)
    if numbers is None:
        message = f"--shape {text}: expected query heads/KV heads/head size, e.g. 24/4/256"
        raise UsageError(message)
    heads, kv_heads, size = map(int, numbers.groups())
    if not heads or not kv_heads or heads % kv_heads:
        message = f"--shape {text}: {heads} query heads do not divide among {kv_heads} KV heads"
        raise UsageError(message)
    if not 1 <= page <= LARGEST_SIZE:
        message = f"--page {page}: must be from 1 to {LARGEST_SIZE}"
        raise UsageError(message)
    return StaticShape(num_heads=heads, num_kv_heads=kv_heads, head_size=size, page=page)


def _tunings(target: str, layer: StaticShape) -> dict[str, dict[str, int]]:
    """The launch constants in the target's profile; none where it has no profile."""
    from hwtune.domain.kernel import tuning_for
    from hwtune.io.profiles import load_profile, profile_names

    if target not in profile_names():
        return {}
    kernels = load_profile(target).kernels
    found = {k.implementation: tuning_for(k, layer.head_size, layer.page) for k in kernels}
    return {name: tuning for name, tuning in found.items() if tuning}
