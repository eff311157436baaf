"""``hwtune ab-bench compare`` and ``export``: saved results, judged and handed on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hwtune.cli import ab_bench_options as options
from hwtune.domain.errors import ANSWER_IS_NO, InputError

if TYPE_CHECKING:
    from hwtune.domain.bench import Comparison

Format = Literal["table", "json", "markdown", "csv"]


def compare(
    baseline: Annotated[Path, typer.Argument(help="Result file or directory, or a run of ours.")],
    candidate: Annotated[Path | None, typer.Argument(help="The other side.")] = None,
    margin: Annotated[
        float | None, typer.Option(help="A change within this is 'the same'. Default 0.02.")
    ] = None,
    confidence: Annotated[
        float | None, typer.Option(help="Of all tiers together, per metric. Default 0.95.")
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="Result on standard output.")] = "table",
) -> None:
    """Judge saved results: two of `vllm bench serve --save-detailed`, or one run of ab-bench.

    A run of ours keeps its own margin and confidence unless others are given.

    Exit status 0 not slower, 1 slower or not comparable, 3 bad input.
    """
    from hwtune.report.bench import render

    options.check_judgement(0.02 if margin is None else margin, confidence or 0.95)
    if candidate is None:
        comparison = _judge_again(baseline, margin, confidence)
    else:
        comparison = _judge_files(baseline, candidate, margin, confidence)
    sys.stdout.write(render(comparison, form))
    if comparison.answer_is_no:
        raise typer.Exit(ANSWER_IS_NO)


def _judge_files(
    baseline: Path, candidate: Path, margin: float | None, confidence: float | None
) -> Comparison:
    from hwtune.domain.saved import compare_saved
    from hwtune.io.saved_results import pair_results

    pairs, notes = pair_results(baseline, candidate)
    return compare_saved(
        pairs,
        margin=0.02 if margin is None else margin,
        confidence=0.95 if confidence is None else confidence,
        notes=notes,
    )


def _judge_again(run_dir: Path, margin: float | None, confidence: float | None) -> Comparison:
    from hwtune.adapters.load.session import Session
    from hwtune.domain.workload import with_levels
    from hwtune.io.records import read_design

    design = with_levels(read_design(run_dir), margin, confidence)
    comparison = Session(design, run_dir, resumed=True).judge(keep_stored=True)
    if comparison is None:
        message = f"{run_dir}: nothing was measured yet"
        raise InputError(message)
    return comparison
