"""An A/B run as one self-contained HTML page. It loads nothing from anywhere; computes nothing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from hwtune.domain.bench import Comparison, Gate, MetricResult, RequestRecord, TierResult
from hwtune.domain.bench_series import TierSeries
from hwtune.domain.server_compare import ServerComparison
from hwtune.domain.stats import finite_or_null
from hwtune.io.assets import read_asset

_MOST_FAILURES = 20


def bench_page(
    comparison: Comparison,
    series: Sequence[TierSeries],
    records: Sequence[RequestRecord],
    arms: ServerComparison | None,
) -> str:
    """The whole document."""
    data = finite_or_null(page_data(comparison, series, records, arms))
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    # Inside a script element only this could end it early.
    return read_asset("bench.html").replace("/*DATA*/", text.replace("<", "\\u003c"))


def page_data(
    comparison: Comparison,
    series: Sequence[TierSeries],
    records: Sequence[RequestRecord],
    arms: ServerComparison | None,
) -> dict[str, Any]:
    """What the page draws."""
    failed = [record for record in records if record.failure is not None]
    return {
        "model": comparison.model,
        "margin": comparison.margin * 100.0,
        "confidence": comparison.confidence * 100.0,
        "unit": comparison.unit,
        "conditions": list(comparison.conditions.items()),
        "gates": [
            *(_gate(gate, "run") for gate in comparison.gates),
            *(_gate(gate, tier.tier) for tier in comparison.tiers for gate in tier.gates),
        ],
        "tiers": [
            _tier(tier, points) for tier, points in zip(comparison.tiers, series, strict=True)
        ],
        "arms": None if arms is None else _arms(arms),
        "failures": [_failure(record) for record in failed[:_MOST_FAILURES]],
        "failed": len(failed),
        "notes": [*comparison.warm_up, *comparison.notes],
    }


def _gate(gate: Gate, where: str) -> list[str]:
    return [where, gate.name, gate.state, gate.evidence]


def _tier(tier: TierResult, points: TierSeries) -> dict[str, Any]:
    notes = list(tier.drift)
    if tier.text_agreement is not None:
        notes.append(f"same text in both arms: {tier.text_agreement * 100:.0f} % of prompts")
    return {
        "name": tier.tier,
        "prompts": tier.prompts,
        "tokens": tier.prompt_tokens,
        "done": tier.pairs_done,
        "planned": tier.pairs_planned,
        "metrics": [_metric(result) for result in tier.metrics],
        "noise": [_metric(result) for result in tier.noise],
        "notes": notes,
        "points": [list(dataclasses.astuple(point)) for point in points.points],
        "changes": points.changes,
    }


def _metric(result: MetricResult) -> dict[str, Any]:
    low, high = result.interval or (None, None)
    return {
        "name": result.metric.name,
        "title": result.metric.title,
        "unit": result.metric.unit,
        "formula": result.metric.formula,
        "baseline": result.baseline,
        "candidate": result.candidate,
        "change": result.change_pct,
        "low": None if low is None else (low - 1.0) * 100.0,
        "high": None if high is None else (high - 1.0) * 100.0,
        "kind": result.verdict.kind,
        "verdict": result.verdict.text,
    }


def _arms(arms: ServerComparison) -> dict[str, Any]:
    return {
        "rows": [[item.fact, item.a, item.b, item.declared] for item in arms.differences],
        "same": [list(pair) for pair in arms.same_values],
        "problems": [*arms.problems, *arms.unseen],
    }


def _failure(record: RequestRecord) -> list[str]:
    return [record.arm, record.tier, record.failure or "", record.detail[:200]]
