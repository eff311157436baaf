"""The table of timed kernels. Computes nothing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from hwtune.domain.kernel_timing import SCOPE, KernelRow
from hwtune.report.tables import Cell, Column, Format, Table, columns, render

_COLUMNS = columns(
    "kernel=kernel",
    "shape=heads/KV/size",
    "page=page",
    "batch=batch",
    "query=query",
    "context=KV",
    "caches=L2",
    "baseline=baseline",
    Column(key="baseline_us", title="baseline µs", decimals=1),
    Column(key="ours_us", title="ours µs", decimals=1),
    Column(key="speed_up", title="speed-up", decimals=3),
    "interval=interval",
    Column(key="gb_per_s", title="GB/s", decimals=1),
    Column(key="bandwidth_pct", title="of bandwidth", decimals=1, suffix=" %"),
    Column(key="max_abs", title="max |err|", decimals=5),
    Column(key="relative_l2", title="rel. L2", decimals=5),
    Column(key="baseline_relative_l2", title="baseline's", decimals=5),
    "verdict=verdict",
)


def to_text(rows: Sequence[KernelRow], kind: Format, *, device: str, confidence: float) -> str:
    """``table``, ``markdown``, ``csv`` or ``json``, with a final newline."""
    if kind is Format.JSON:
        data = {
            "scope": SCOPE,
            "device": device,
            "confidence": confidence,
            "rows": [dataclasses.asdict(row) for row in rows],
        }
        return json.dumps(data, indent=2) + "\n"
    shown = _shown_columns(rows)
    cells = [_cells(row) for row in rows]
    lines = tuple(tuple(line[column.key] for column in shown) for line in cells)
    text = render(Table(columns=shown, rows=lines, title=_title(device)), kind) + "\n"
    if kind is Format.CSV:
        return text
    return (
        f"{text}\nspeed-up is the baseline's time over ours, with its {confidence * 100:g} %"
        " interval over pairs; errors are against float64 attention; no ratio without a green"
        " comparison\n"
    )


def _title(device: str) -> str:
    return f"Kernels alone (scope: {SCOPE}) on {device}"


def _shown_columns(rows: Sequence[KernelRow]) -> tuple[Column, ...]:
    """Without what nothing here has: a profile without a bandwidth, a CPU without an L2 to flush."""
    unknown = set()
    if all(row.bandwidth_pct is None for row in rows):
        unknown.add("bandwidth_pct")
    if all(row.sample.caches == "as they are" for row in rows):
        unknown.add("caches")
    return tuple(column for column in _COLUMNS if column.key not in unknown)


def _cells(row: KernelRow) -> dict[str, Cell]:
    sample, case = row.sample, row.sample.case
    return {
        "kernel": sample.kernel,
        "shape": f"{case.num_heads}/{case.num_kv_heads}/{case.head_size}",
        "page": case.page,
        "batch": case.batch,
        "query": case.query,
        "context": case.context,
        "caches": sample.caches,
        "baseline": sample.baseline,
        "baseline_us": row.baseline_us,
        "ours_us": row.ours_us,
        "speed_up": row.speed_up,
        "interval": None if row.interval is None else "[{:.3f}, {:.3f}]".format(*row.interval),
        "gb_per_s": row.gb_per_s,
        "bandwidth_pct": row.bandwidth_pct,
        "max_abs": sample.ours_error.max_abs,
        "relative_l2": sample.ours_error.relative_l2,
        "baseline_relative_l2": sample.baseline_error.relative_l2,
        "verdict": row.verdict,
    }
