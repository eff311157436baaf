"""How a judged comparison leaves the program: text, files, exit status. For every ``ab-bench``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hwtune.domain.plain_text import one_line

if TYPE_CHECKING:
    from hwtune.domain.bench import Comparison
    from hwtune.domain.fail_if import Rule

Format = Literal["table", "json", "markdown", "csv"]

FormatOption = Annotated[Format, typer.Option("--format", help="Result on standard output.")]
FailIfOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Rule for the exit status, e.g. 'ttft_p50 slower than 3%'. Repeatable.",
    ),
]
JunitOption = Annotated[Path | None, typer.Option(help="Also write gates and verdicts as JUnit.")]
ParquetOption = Annotated[Path | None, typer.Option(help="Also write the table as Parquet.")]


def say(text: str) -> None:
    """A plain line on standard error: it also makes sense in a log."""
    sys.stderr.write(one_line(text) + "\n")
    sys.stderr.flush()


def rules_of(texts: Sequence[str] | None) -> list[Rule]:
    """Parsed before anything is measured.

    Raises:
        UsageError: a rule that is none.
    """
    from hwtune.domain.fail_if import parse_rule

    return [parse_rule(text) for text in texts or ()]


@dataclass(frozen=True, slots=True)
class Delivery:
    """Where a comparison goes, and what its exit status depends on."""

    form: Format
    rules: Sequence[Rule]
    junit: Path | None
    parquet: Path | None


def deliver(comparison: Comparison, to: Delivery) -> bool:
    """Prints and writes everything; whether the answer is no.

    Raises:
        ExternalFailureError: a file cannot be written.
        MissingDependencyError: --parquet without pyarrow.
    """
    from hwtune.domain.fail_if import outcomes
    from hwtune.report.bench import render

    found = outcomes(to.rules, comparison)
    sys.stdout.write(render(comparison, to.form))
    for outcome in found:
        sys.stderr.write(
            f"fail-if {outcome.tier}: {outcome.rule.text}: {outcome.state.upper()}"
            f" ({outcome.evidence})\n"
        )
    if to.junit is not None:
        from hwtune.io.records import write_text
        from hwtune.report.bench_junit import comparison_to_junit

        write_text(to.junit, comparison_to_junit(comparison, found))
    if to.parquet is not None:
        from hwtune.adapters.parquet import write_parquet
        from hwtune.report.bench import to_rows

        write_parquet(to_rows(comparison), to.parquet)
    if not to.rules:
        return comparison.answer_is_no
    return bool(comparison.red_gates) or any(outcome.state == "failed" for outcome in found)
