"""A judged comparison as text, Markdown, CSV or JSON. Computes nothing."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Callable, Sequence

from hwtune.domain.bench import Comparison, Gate, MetricResult, TierResult
from hwtune.domain.bench_metrics import LATENCIES
from hwtune.domain.plain_text import one_line
from hwtune.domain.stats import finite_or_null
from hwtune.report.tables import markdown_row, markdown_text

_HEADER = ("metric", "unit", "baseline", "candidate", "change", "interval", "verdict")
_STATISTICS = ("p50", "p90", "p95", "p99")
GATE_MARKS = {"passed": "ok", "failed": "FAILED", "not checked": "not checked"}


def render(comparison: Comparison, form: str) -> str:
    """``table``, ``markdown``, ``csv`` or ``json``."""
    return _FORMS[form](comparison)


def to_table(comparison: Comparison) -> str:
    """Plain text for a terminal or a log: one table per tier, conditions beside it."""
    lines = [_title(comparison), *_conditions(comparison), ""]
    for tier in comparison.tiers:
        lines += [
            _tier_title(tier, comparison.unit),
            *_aligned([_HEADER, *map(_cells, tier.metrics)]),
        ]
        lines += [f"  {note}" for note in _below(tier)]
        lines.append("")
    lines += [*_gate_lines(comparison), *(f"note: {note}" for note in comparison.notes)]
    return "\n".join(map(one_line, lines)).rstrip() + "\n"


def _title(comparison: Comparison) -> str:
    return f"Serving, end to end: candidate against baseline · {comparison.model}"


def _conditions(comparison: Comparison) -> list[str]:
    facts = "; ".join(f"{name}: {value}" for name, value in comparison.conditions.items())
    interval = (
        f"Intervals: {comparison.confidence * 100:g} % over all tiers, per metric, over"
        f" {comparison.unit}; same means within ±{comparison.margin * 100:g} %."
    )
    return [facts, interval]


def _tier_title(tier: TierResult, unit: str) -> str:
    tokens = " to ".join(map(str, tier.prompt_tokens)) if tier.prompt_tokens else "no"
    return (
        f"Tier {tier.tier} · {tier.prompts} prompts in both arms · {tokens} prompt tokens ·"
        f" {tier.pairs_done} of {tier.pairs_planned} {unit}"
    )


def _cells(result: MetricResult) -> tuple[str, ...]:
    return (
        result.metric.title,
        result.metric.unit,
        _number(result.baseline),
        _number(result.candidate),
        "-" if result.change_pct is None else f"{result.change_pct:+.1f} %",
        _interval(result),
        _short_verdict(result),
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def _interval(result: MetricResult) -> str:
    if result.interval is None:
        return "-"
    low, high = ((bound - 1.0) * 100.0 for bound in result.interval)
    return f"[{low:+.1f}, {high:+.1f}] %"


def _short_verdict(result: MetricResult) -> str:
    """The reason of "not comparable" stands once, below the table."""
    if result.verdict.kind == "not comparable":
        return "not comparable"
    return result.verdict.text


def _below(tier: TierResult) -> list[str]:
    notes = []
    agreement = next((gate for gate in tier.gates if gate.name == "outputs agree"), None)
    if agreement is not None and agreement.state == "passed":
        notes.append(f"outputs: {agreement.evidence}")
    elif tier.text_agreement is not None:
        notes.append(f"same text in both arms: {tier.text_agreement * 100:.0f} % of prompts")
    notes += _quantile_lines(tier)
    notes += tier.drift
    reasons = {r.verdict.text for r in tier.metrics if r.verdict.kind == "not comparable"}
    return [*notes, *sorted(reasons)]


def _quantile_lines(tier: TierResult) -> list[str]:
    """The distribution of each latency, baseline | candidate."""
    lines = []
    for name in dict.fromkeys(q.metric.name for q in tier.quantiles if q.metric in LATENCIES):
        mine = [quantile for quantile in tier.quantiles if quantile.metric.name == name]
        shown = ", ".join(
            f"{q.statistic} {_number(q.baseline)} | {_number(q.candidate)}"
            for q in mine
            if q.statistic != "p95"
        )
        lines.append(f"{mine[0].metric.title}, baseline | candidate in ms: {shown}")
    return lines


def _gate_lines(comparison: Comparison) -> list[str]:
    lines = ["Gates"] if comparison.gates else []
    lines += [_gate_line(gate) for gate in comparison.gates]
    for tier in comparison.tiers:
        lines += [_gate_line(gate, tier.tier) for gate in tier.gates if gate.state != "passed"]
        passed = ", ".join(gate.name for gate in tier.gates if gate.state == "passed")
        if passed:
            lines.append(f"  ok           {tier.tier}: {passed}")
    return lines


def _gate_line(gate: Gate, tier: str = "") -> str:
    where = f"{tier}: " if tier else ""
    return f"  {GATE_MARKS[gate.state]:<12} {where}{gate.name}: {gate.evidence}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns padded to their widest cell; numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if 2 <= column <= 5 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def to_markdown(comparison: Comparison) -> str:
    """The same for a pull request."""
    lines = [f"# {_title(comparison)}", ""]
    lines += [f"- {name}: {value}" for name, value in comparison.conditions.items()]
    lines += [f"- {_conditions(comparison)[1]}", *(f"- {note}" for note in comparison.notes)]
    for tier in comparison.tiers:
        lines += ["", f"## {_tier_title(tier, comparison.unit)}", "", markdown_row(_HEADER)]
        lines.append(markdown_row(["---"] * len(_HEADER)))
        lines += [markdown_row(_cells(result)) for result in tier.metrics]
        lines += ["", *(f"- {note}" for note in _below(tier))]
    lines += ["", "## Gates", ""]
    lines += [f"- {line.strip()}" for line in _gate_lines(comparison) if line.startswith(" ")]
    lines += ["", "## Warm-up (excluded)", "", *(f"- {line}" for line in comparison.warm_up)]
    return "\n".join(map(markdown_text, lines)) + "\n"


def to_rows(comparison: Comparison) -> list[dict[str, str | float | int | None]]:
    """One row per tier and metric, for CSV and Parquet."""
    return [
        {
            "scope": comparison.scope,
            "tier": tier.tier,
            "metric": result.metric.name,
            "unit": result.metric.unit,
            "baseline": result.baseline,
            "candidate": result.candidate,
            "ratio": result.ratio,
            "ratio_low": result.interval[0] if result.interval else None,
            "ratio_high": result.interval[1] if result.interval else None,
            "blocks": result.blocks,
            "prompts": tier.prompts,
            "verdict": result.verdict.kind,
            "text": result.verdict.text,
            **_quantile_cells(tier, result.metric.name),
        }
        for tier in comparison.tiers
        for result in tier.metrics
    ]


def _quantile_cells(tier: TierResult, metric: str) -> dict[str, float | None]:
    cells: dict[str, float | None] = {}
    found = {q.statistic: q for q in tier.quantiles if q.metric.name == metric}
    for statistic in _STATISTICS:
        quantile = found.get(statistic)
        cells[f"baseline_{statistic}"] = quantile.baseline if quantile else None
        cells[f"candidate_{statistic}"] = quantile.candidate if quantile else None
    return cells


def to_csv(comparison: Comparison) -> str:
    """One line per tier and metric."""
    rows = to_rows(comparison)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def to_json(comparison: Comparison) -> str:
    """Everything, keys in declaration order; no number is NaN or infinite."""
    data = finite_or_null(dataclasses.asdict(comparison))
    if comparison.unit == "prompts":
        data = _as_prompts(data)
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


_PROMPT_KEYS = {
    "blocks": "prompts",
    "more_blocks": "more_prompts",
    "pairs_done": "prompt_pairs_done",
    "pairs_planned": "prompt_pairs_planned",
}


def _as_prompts(data: object) -> object:
    """Keys that say what was paired: two saved files pair prompts, not blocks."""
    if isinstance(data, dict):
        return {_PROMPT_KEYS.get(key, key): _as_prompts(item) for key, item in data.items()}
    return [_as_prompts(item) for item in data] if isinstance(data, list) else data


_FORMS: dict[str, Callable[[Comparison], str]] = {
    "table": to_table,
    "markdown": to_markdown,
    "csv": to_csv,
    "json": to_json,
}
