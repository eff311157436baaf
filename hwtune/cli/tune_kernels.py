"""``hwtune tune-kernels``: which launch constants suit a device."""

from __future__ import annotations

import shlex
import sys
from datetime import date
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwtune.cli.ab_bench_kernels import layer_of
from hwtune.cli.given import refuse_given
from hwtune.domain.errors import ANSWER_IS_NO, UsageError
from hwtune.report.tables import Format

if TYPE_CHECKING:
    from hwtune.domain.kernel_static import StaticShape
    from hwtune.domain.kernel_sweep import Sweep


class Part(str, Enum):
    """What launch constants can be written for alone."""

    HEAD_SIZE = "head-size"
    PAGE = "page"


_MOST = 200
_CONTEXTS = {"decode": (8192, 32768), "prefill": (8192,)}
_QUERY = {"decode": 1, "prefill": 2048}


def tune_kernels(
    context: typer.Context,
    target: Annotated[
        str | None, typer.Option(help="Compile for this device, e.g. sm_90, instead of timing.")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(help="Profile whose constants are the start. Default: the target's."),
    ] = None,
    shape: Annotated[
        str, typer.Option(help="Query heads/KV heads/head size of the layer.")
    ] = "24/4/256",
    page: Annotated[int, typer.Option(help="Tokens per page.")] = 832,
    kernel: Annotated[str, typer.Option(help="decode.triton or prefill.triton.")] = "decode.triton",
    limit: Annotated[int, typer.Option(help="Most sets of constants to try.")] = 12,
    processes: Annotated[int, typer.Option(help="Compilers at the same time.")] = 2,
    only_for: Annotated[
        list[Part] | None,
        typer.Option(help="Write the result for this head size or kind of page only. Repeatable."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write the best as a piece of a profile (TOML).")
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="Result on standard output.")] = (
        Format.TABLE
    ),
) -> None:
    """Try launch constants of a kernel and print every one with its score.

    Without --target each is timed on the GPU that is here, in graph replay, with L2 warm and cold;
    with it each is compiled for that device, which need not be here, and scored by its machine
    code. Exit status 0 done, 1 nothing tried is free of faults (nothing is written), 2 usage, 3 bad
    input, 5 torch, Triton or vLLM is missing, 6 the compiler or the device failed.
    """
    from hwtune.domain.kernel_sweep import candidates
    from hwtune.report.kernel_sweep import to_text

    layer = layer_of(shape, page)
    for option, number in (("--limit", limit), ("--processes", processes)):
        if not 1 <= number <= _MOST:
            message = f"{option} {number}: must be from 1 to {_MOST}"
            raise UsageError(message)
    if target is None:
        refuse_given(context, ("processes",), "without --target: a device times one by one")
    if only_for and output is None:
        message = "--only-for says what --output writes, which is not given"
        raise UsageError(message)
    tunings = candidates(kernel, page, _base(profile, target, kernel, layer), limit)
    sweep = _sweep(target, layer, kernel, tunings, processes)
    sys.stdout.write(to_text(sweep, form))
    if sweep.best is None:
        raise typer.Exit(ANSWER_IS_NO)
    if output is not None:
        _write(output, sweep, layer, tuple(only_for or ()))


def _base(
    profile: str | None, target: str | None, kernel: str, layer: StaticShape
) -> dict[str, int]:
    """The constants that a profile has for this layer; none where it has no such kernel."""
    from hwtune.domain.kernel import tuning_for
    from hwtune.io.profiles import load_profile, profile_names

    if profile is None and target not in profile_names():
        return {}
    kernels = load_profile(profile or str(target)).kernels
    found = next((spec for spec in kernels if spec.implementation == kernel), None)
    return {} if found is None else tuning_for(found, layer.head_size, layer.page)


def _sweep(
    target: str | None,
    layer: StaticShape,
    kernel: str,
    tunings: tuple[dict[str, int], ...],
    processes: int,
) -> Sweep:
    from hwtune.adapters.kernel_bench.run import device_here
    from hwtune.adapters.kernel_sweep import compile_sweep, time_sweep
    from hwtune.domain.kernel_timing import CallCase

    if target is not None:
        return compile_sweep(target, layer, kernel, tunings, processes)
    kind, device = device_here()
    if kind != "cuda":
        message = "no GPU here to time on: give --target to compile for one, e.g. --target sm_90"
        raise UsageError(message)
    operation = kernel.partition(".")[0]
    cases = [
        CallCase(
            num_heads=layer.num_heads,
            num_kv_heads=layer.num_kv_heads,
            head_size=layer.head_size,
            page=layer.page,
            batch=1,
            query=_QUERY[operation],
            context=context,
        )
        for context in _CONTEXTS[operation]
    ]
    return time_sweep(cases, kernel, tunings, device)


def _write(output: Path, sweep: Sweep, layer: StaticShape, only_for: tuple[Part, ...]) -> None:
    from hwtune.adapters.kernel_sweep import check_tuning
    from hwtune.adapters.vllm.surroundings import cpu_name
    from hwtune.io.records import write_text
    from hwtune.io.tuning_fragment import Fragment, fragment_text

    best = sweep.best
    assert best is not None, "the caller asked"
    check_tuning(sweep.implementation, best.tuning)
    fragment = Fragment(
        tuning=best.tuning,
        source=(
            f"{date.today().isoformat()}, on {cpu_name()}: best of "
            f"{len(sweep.trials)} for {sweep.where}, {sweep.shape}, page {sweep.page}; score "
            f"{best.score:.2f} of vLLM's generic kernel, by {sweep.scored_by}"
        ),
        command=f"hwtune tune-kernels {shlex.join(_arguments(sweep, layer))}",
        head_sizes=(layer.head_size,) if Part.HEAD_SIZE in only_for else (),
        page_not_multiple_of=2 * (layer.page & -layer.page) if Part.PAGE in only_for else None,
    )
    write_text(output, fragment_text(fragment))
    sys.stderr.write(f"wrote {output}: put it under the kernel's [kernels.when] in the profile\n")


def _arguments(sweep: Sweep, layer: StaticShape) -> list[str]:
    target = [] if sweep.baseline is None else ["--target", sweep.where]
    return [
        *target,
        *("--kernel", sweep.implementation, "--shape", sweep.shape, "--page", str(layer.page)),
    ]
