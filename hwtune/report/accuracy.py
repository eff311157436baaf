"""An accuracy comparison as text, Markdown or JSON. Computes nothing."""

from __future__ import annotations

import dataclasses
import json

from hwtune.domain.accuracy import AccuracyReport
from hwtune.domain.logprobs import DECIDED_LEAD, STRAY_ERROR
from hwtune.domain.plain_text import one_line
from hwtune.domain.stats import finite_or_null
from hwtune.report.bench import GATE_MARKS
from hwtune.report.tables import Column, Format, Table, columns, markdown_text, render

_AGREEMENT = columns(
    "part=path",
    "positions=positions",
    Column(key="mean_kl", title="mean KL", decimals=6),
    Column(key="max_kl", title="max KL", decimals=4),
    Column(key="mean_abs_delta", title="mean |Δ|", decimals=5),
    Column(key="max_abs_delta", title="max |Δ|", decimals=4),
    Column(key="top1", title="same top token", decimals=2, suffix=" %"),
    "flips=decided flips",
    Column(key="median_error", title="median error", decimals=2, suffix=" %"),
    Column(key="largest_error", title="largest", decimals=1, suffix=" %"),
    "strays=strays",
)
_TASKS = columns(
    "task=task",
    "items=items",
    "baseline_right=baseline right",
    "candidate_right=candidate right",
    "lost=lost",
    "gained=gained",
    Column(key="lost_at_most", title="lost at most (95 %)", decimals=1, suffix=" %"),
)


def to_text(report: AccuracyReport, kind: Format) -> str:
    """``table``, ``markdown``, ``csv`` (log-probabilities only) or ``json``, with a final newline."""
    if kind is Format.JSON:
        data = finite_or_null(dataclasses.asdict(report))
        return json.dumps(data, indent=2, allow_nan=False) + "\n"
    agreements = _agreement_table(report)
    if kind is Format.CSV:
        return render(agreements, kind) + "\n"
    bullet, plain = ("- ", markdown_text) if kind is Format.MARKDOWN else ("  ", one_line)
    blocks = [
        plain(f"Accuracy: candidate against baseline · {report.model}"),
        render(agreements, kind),
        render(_task_table(report), kind),
        "\n".join(bullet + plain(line) for line in _lines(report)),
        plain(f"{report.verdict}: {report.reason}"),
    ]
    return "\n\n".join(blocks) + "\n"


def _agreement_table(report: AccuracyReport) -> Table:
    rows = tuple(
        (
            found.part,
            found.positions,
            found.mean_kl,
            found.max_kl,
            found.mean_abs_delta,
            found.max_abs_delta,
            found.top1_agreement * 100.0,
            f"{found.decided_flips} of {found.decided}",
            found.median_error * 100.0,
            found.largest_error * 100.0,
            found.strays,
        )
        for found in report.agreements
    )
    title = "Log-probabilities of the same text, in nats"
    return Table(columns=_AGREEMENT, rows=rows, title=title)


def _task_table(report: AccuracyReport) -> Table:
    rows = tuple(
        (
            score.task,
            score.items,
            score.baseline_right,
            score.candidate_right,
            score.lost,
            score.gained,
            score.lost_at_most * 100.0,
        )
        for score in report.tasks
    )
    return Table(columns=_TASKS, rows=rows, title="Tasks")


def _lines(report: AccuracyReport) -> list[str]:
    lines = [f"{GATE_MARKS[gate.state]}: {gate.name}: {gate.evidence}" for gate in report.gates]
    lines.append(f"same text in both arms: {report.same_text} of {report.prompts} prompts")
    lines.append(
        f"KL is over the top tokens that both arms list and one bucket for the rest; a decided"
        f" position has a lead of more than {DECIDED_LEAD:g} nats; an error is the arms' distance"
        f" over the baseline's spread, a stray one over {STRAY_ERROR * 100:g} %"
    )
    return [*lines, *(f"note: {note}" for note in report.notes)]
