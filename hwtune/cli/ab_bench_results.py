"""``hwtune ab-bench compare`` and ``export``: saved results, judged and handed on."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwtune.cli import ab_bench_options as options
from hwtune.cli.ab_bench_output import (
    Delivery,
    FailIfOption,
    FormatOption,
    JunitOption,
    ParquetOption,
    deliver,
    rules_of,
)
from hwtune.domain.errors import ANSWER_IS_NO, InputError

if TYPE_CHECKING:
    from hwtune.adapters.load.session import Session
    from hwtune.domain.bench import Comparison
    from hwtune.domain.fail_if import Rule


def compare(
    baseline: Annotated[Path, typer.Argument(help="Result file or directory, or a run of ours.")],
    candidate: Annotated[Path | None, typer.Argument(help="The other side.")] = None,
    margin: Annotated[
        float | None, typer.Option(help="A change within this is 'the same'. Default 0.02.")
    ] = None,
    confidence: Annotated[
        float | None, typer.Option(help="Of all tiers together, per metric. Default 0.95.")
    ] = None,
    fail_if: FailIfOption = None,
    junit: JunitOption = None,
    parquet: ParquetOption = None,
    form: FormatOption = "table",
) -> None:
    """Judge saved results: two of vllm bench serve, aiperf or guidellm, or one run of ab-bench.

    A run of ours keeps its own margin and confidence unless others are given. Two arms of runs of
    ours are named as DIR:baseline and DIR:candidate.

    Exit status 0 not slower (or no rule of --fail-if met), 1 slower, not comparable or a rule met,
    3 bad input.
    """
    options.check_judgement(
        0.02 if margin is None else margin, 0.95 if confidence is None else confidence
    )
    rules = rules_of(fail_if)
    if candidate is None:
        _, comparison = judge_again(baseline, margin, confidence, rules)
    else:
        comparison = _judge_files(baseline, candidate, margin, confidence, rules)
    if deliver(comparison, Delivery(form, rules, junit, parquet)):
        raise typer.Exit(ANSWER_IS_NO)


def _judge_files(
    baseline: Path,
    candidate: Path,
    margin: float | None,
    confidence: float | None,
    rules: Sequence[Rule],
) -> Comparison:
    from hwtune.domain.bench_metrics import OUTPUT_THROUGHPUT
    from hwtune.domain.fail_if import check_rules, judged_by
    from hwtune.domain.saved import compare_saved
    from hwtune.domain.saved_run import LATENCIES
    from hwtune.io.saved_results import pair_results

    pairs, notes = pair_results(baseline, candidate)
    metrics = [metric.name for metric, _ in LATENCIES] + [OUTPUT_THROUGHPUT.name]
    check_rules(rules, [name for name, _, _ in pairs], metrics)
    return compare_saved(
        pairs,
        margin=0.02 if margin is None else margin,
        confidence=0.95 if confidence is None else confidence,
        notes=notes,
        judged=judged_by(rules),
    )


def judge_again(
    run_dir: Path,
    margin: float | None = None,
    confidence: float | None = None,
    rules: Sequence[Rule] = (),
) -> tuple[Session, Comparison]:
    """A run of ours, judged from what is on disk.

    Raises:
        InputError: no run, a damaged one, or nothing was measured yet.
    """
    from hwtune.adapters.load.session import Session
    from hwtune.domain.bench_values import metrics_of
    from hwtune.domain.fail_if import check_rules, judged_by
    from hwtune.domain.workload import with_levels
    from hwtune.io.records import read_design

    design = with_levels(read_design(run_dir), margin, confidence)
    tiers = [tier.name for tier in design.tiers]
    check_rules(rules, tiers, [metric.name for metric in metrics_of(design)])
    session = Session(design, run_dir, resumed=True)
    comparison = session.judge(keep_stored=True, judged=judged_by(rules))
    if comparison is None:
        message = f"{run_dir}: nothing was measured yet"
        raise InputError(message)
    return session, comparison


def export(
    run_dir: Annotated[Path, typer.Argument(help="Run directory of ab-bench serving.")],
    output: Annotated[Path | None, typer.Option(help="Default: vllm-bench in RUN_DIR.")] = None,
) -> None:
    """Write a run as vllm bench serve --save-detailed would: one JSON file per arm and tier.

    The gates do not travel with the numbers: judge first. Exit status 0, or 3 bad input.
    """
    from hwtune.io.export import export_run

    for path in export_run(run_dir, output or run_dir / "vllm-bench"):
        sys.stdout.write(f"{path}\n")
