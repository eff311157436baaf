"""``hwtune ab-bench buckets``: where the time of a profiled server went."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hwtune.domain.errors import ANSWER_IS_NO
from hwtune.report.tables import Format


def buckets(
    baseline: Annotated[
        Path, typer.Argument(help="A trace of torch.profiler, or the directory it was written to.")
    ],
    candidate: Annotated[Path | None, typer.Argument(help="The other arm's.")] = None,
    by_phase: Annotated[
        bool, typer.Option("--by-phase", help="Also apart for prefill, mixed and decode steps.")
    ] = False,
    form: Annotated[Format, typer.Option("--format", help="Result on standard output.")] = (
        Format.TABLE
    ),
) -> None:
    """Sum a profile's time into attention, GEMM, recurrent layers, sampling and the rest.

    Exit status 0 done, 1 the two profiles are not of the same work, 3 bad input.
    """
    from hwtune.domain.bucket_compare import compare_buckets
    from hwtune.io.traces import read_arm
    from hwtune.report.buckets import to_text

    arms = [read_arm(baseline, "baseline")]
    if candidate is not None:
        arms.append(read_arm(candidate, "candidate"))
    comparison = compare_buckets(*arms, by_phase=by_phase)
    sys.stdout.write(to_text(comparison, form))
    if comparison.refusal is not None:
        raise typer.Exit(ANSWER_IS_NO)
