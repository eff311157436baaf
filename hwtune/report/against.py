"""Predicted and counted calls side by side."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from hwtune.domain.scheduler.against import Comparison
from hwtune.report.tables import Format, Table, columns, render


def show_comparisons(comparisons: Sequence[Comparison], kind: Format) -> str:
    """All arms as text, without a final newline."""
    if kind is Format.JSON:
        return json.dumps(comparisons_record(comparisons), indent=2, allow_nan=False)
    if kind is Format.CSV:
        return render(_table(comparisons), kind)
    return "\n\n".join(_one(comparison, kind) for comparison in comparisons)


def comparisons_record(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """All arms as JSON data; docs/simulating.md describes it."""
    return {
        "schema_version": 1,
        "comparisons": [dataclasses.asdict(comparison) for comparison in comparisons],
    }


def _table(comparisons: Sequence[Comparison]) -> Table:
    rows = tuple(
        (
            comparison.arm,
            row.kernel,
            row.outcome,
            row.predicted,
            row.counted,
            row.counted - row.predicted,
        )
        for comparison in comparisons
        for row in comparison.rows
    )
    return Table(
        columns=columns(
            "arm=arm",
            "kernel=kernel",
            "outcome=outcome",
            "predicted=predicted calls",
            "counted=counted calls",
            "difference=difference",
        ),
        rows=rows,
    )


def _one(comparison: Comparison, kind: Format) -> str:
    verdict = {
        "exact": "the counters are exactly what was predicted",
        "differs": "the counters differ from the prediction",
        "not exact by nature": "the counters differ, as they may at this concurrency",
    }[comparison.agreement]
    parts = [f"{comparison.arm}: {verdict}", render(_table([comparison]), kind)]
    parts += [f"why: {reason}" for reason in comparison.reasons]
    parts += [f"note: {note}" for note in comparison.notes]
    return "\n".join(parts)
