"""A sweep as a table, with bars in a terminal, or as an SVG picture."""

from __future__ import annotations

import json
from html import escape
from typing import Any, Final

from hwtune.domain.scheduler.question import Sweep, SweepPoint
from hwtune.domain.scheduler.speedup import work_share
from hwtune.domain.scheduler.sweep import AXIS_TITLES
from hwtune.report.forecast import change_text, prediction_record
from hwtune.report.tables import Cell, Column, Format, Table, render

_BAR: Final = 24


def show_sweep(sweep: Sweep, kind: Format) -> str:
    """The sweep as text, without a final newline."""
    if kind is Format.JSON:
        return json.dumps(sweep_record(sweep), indent=2, allow_nan=False)
    if kind is Format.CSV:
        return render(sweep_table(sweep), kind)
    parts = [render(narrow_table(sweep), kind)]
    if kind is Format.TABLE:
        parts += [_bars(sweep, kernel) for kernel in _kernels(sweep)]
    parts += _answers(sweep)
    notes = dict.fromkeys(note for point in sweep.points for note in _notes(point, sweep))
    parts += ["\n".join(f"note: {note}" for note in notes)] if notes else []
    return "\n\n".join(parts)


def _notes(point: SweepPoint, sweep: Sweep) -> list[str]:
    """The notes of a setting; of one that gets stuck with its name."""
    stuck = point.prediction.stuck
    at = " ".join(f"{axis}={value}" for axis, value in point.setting.items())
    return [f"at {at}: {n}" if n == stuck else n for n in point.prediction.notes]


def _kernels(sweep: Sweep) -> tuple[str, ...]:
    return tuple(kernel.name for kernel in sweep.points[0].prediction.forecast.kernels)


def sweep_table(sweep: Sweep) -> Table:
    """One row per setting, with everything; for machines."""
    columns = [Column(key=axis, title=axis) for axis in sweep.axes]
    columns += [
        Column(key="steps", title="steps"),
        Column(key="prefill_steps", title="with prompt"),
    ]
    for name in _kernels(sweep):
        columns += [Column(key=f"{name}_hits", title=f"{name} hits")]
        columns += [
            Column(key=f"{name}_{key}_pct", title=f"{name} {key}", decimals=1, suffix=" %")
            for key in ("hit", "tokens", "flops", "bytes")
        ]
    columns += [
        Column(key=f"change_{end}_pct", title=f"predicted {end}", decimals=1, suffix=" %")
        for end in ("low", "high")
    ]
    return Table(columns=tuple(columns), rows=tuple(_row(point, sweep) for point in sweep.points))


def _row(point: SweepPoint, sweep: Sweep) -> tuple[Cell, ...]:
    forecast, change = point.prediction.forecast, point.prediction.change
    cells: list[Cell] = [point.setting[axis] for axis in sweep.axes]
    cells += [forecast.work.steps, forecast.prefill_steps]
    for kernel in forecast.kernels:
        rate = kernel.hit_rate
        cells += [kernel.hit_steps, None if rate is None else 100 * rate]
        cells += [
            100 * work_share(kernel.work, forecast.work, basis)
            for basis in ("tokens", "flops", "bytes")
        ]
    cells += [None, None] if change is None else [change.low_pct, change.high_pct]
    return tuple(cells)


def narrow_table(sweep: Sweep) -> Table:
    """What fits a terminal: hit rates, FLOPs and the expected change."""
    columns = [Column(key=axis, title=axis) for axis in sweep.axes]
    columns += [Column(key="steps", title="steps"), Column(key="prompt", title="with prompt")]
    for name in _kernels(sweep):
        columns += [
            Column(key=name, title=name, decimals=1, suffix=" %"),
            Column(key=f"{name}_flops", title="of FLOPs", decimals=1, suffix=" %"),
        ]
    changed = any(point.prediction.change is not None for point in sweep.points)
    if changed:
        columns.append(Column(key="change", title="predicted change"))
    rows = tuple(_narrow_row(point, sweep, changed) for point in sweep.points)
    return Table(columns=tuple(columns), rows=rows)


def _narrow_row(point: SweepPoint, sweep: Sweep, changed: bool) -> tuple[Cell, ...]:
    forecast, change = point.prediction.forecast, point.prediction.change
    cells: list[Cell] = [point.setting[axis] for axis in sweep.axes]
    cells += [forecast.work.steps, forecast.prefill_steps]
    for kernel in forecast.kernels:
        rate = kernel.hit_rate
        cells += [
            None if rate is None else 100 * rate,
            100 * work_share(kernel.work, forecast.work, "flops"),
        ]
    if changed:
        interval = None if change is None else f"{change.low_pct:+.1f} to {change.high_pct:+.1f} %"
        cells.append(interval)
    return tuple(cells)


def _label(point: SweepPoint, sweep: Sweep) -> str:
    if len(sweep.axes) == 1:
        return str(next(iter(point.setting.values())))
    return " ".join(f"{axis}={point.setting[axis]}" for axis in sweep.axes)


def _rate(point: SweepPoint, kernel: str) -> float | None:
    found = point.prediction.forecast.kernel(kernel)
    return None if found is None else found.hit_rate


def _bars(sweep: Sweep, kernel: str) -> str:
    labels = [_label(point, sweep) for point in sweep.points]
    width = max(map(len, labels))
    lines = [f"{kernel}: hit rate by {', '.join(AXIS_TITLES[axis] for axis in sweep.axes)}"]
    for label, point in zip(labels, sweep.points, strict=True):
        rate = _rate(point, kernel)
        bar = "" if rate is None else "#" * round(_BAR * rate)
        shown = "no such step" if rate is None else f"{100 * rate:.1f} %"
        lines.append(f"{label:>{width}} |{bar:<{_BAR}}| {shown}")
    return "\n".join(lines)


def _answers(sweep: Sweep) -> list[str]:
    lines = []
    for kernel, value in sweep.first_below.items():
        limit = f"{100 * sweep.limit:g} %"
        most = max(sweep.axes["concurrency"])
        found = (
            f"{kernel}: the hit rate falls below {limit} at concurrency {value}"
            if value is not None
            else f"{kernel}: the hit rate stays at {limit} or above up to concurrency {most}"
        )
        lines.append(found)
    change = sweep.points[-1].prediction.change
    if change is not None:
        lines.append(f"At the last setting: {change_text(change)}")
    return ["\n".join(lines)] if lines else []


def sweep_record(sweep: Sweep) -> dict[str, Any]:
    """The sweep as JSON data."""
    return {
        "schema_version": 1,
        "axes": {axis: list(values) for axis, values in sweep.axes.items()},
        "limit": sweep.limit,
        "first_concurrency_below": dict(sweep.first_below),
        "points": [
            {"setting": dict(point.setting), **prediction_record(point.prediction)}
            for point in sweep.points
        ],
    }


_COLOURS: Final = ("#1f6fb4", "#1a9674", "#b0478f", "#6a51a3", "#3b9fc4", "#8c6d31")
_WIDTH, _HEIGHT, _LEFT, _TOP = 760, 360, 62, 44


def sweep_svg(sweep: Sweep) -> str:
    """Hit rate per kernel over the settings, as a picture that needs nothing else."""
    kernels, points = _kernels(sweep), sweep.points
    step = (_WIDTH - _LEFT - 24) / max(1, len(points) - 1)
    xs = [_LEFT + at * step for at in range(len(points))]
    parts = [_axes(sweep, xs)]
    label_x = _LEFT
    for at, kernel in enumerate(kernels):
        rates = [_rate(point, kernel) for point in points]
        marks = [(x, _y(rate)) for x, rate in zip(xs, rates, strict=True) if rate is not None]
        colour = _COLOURS[at % len(_COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in marks)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>'
        )
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in marks]
        parts.append(
            f'<text x="{label_x}" y="22" fill="{colour}" font-weight="600">{escape(kernel)}</text>'
        )
        label_x += 9 * len(kernel) + 24
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}"'
        f' height="{_HEIGHT}" font-family="system-ui, sans-serif" font-size="13">\n'
        f"<title>Predicted hit rate</title>\n"
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _y(rate: float) -> float:
    return _HEIGHT - 58 - rate * (_HEIGHT - 58 - _TOP)


def _axes(sweep: Sweep, xs: list[float]) -> str:
    lines = []
    for share in sorted({0.0, 0.25, 0.5, 0.75, 1.0, sweep.limit}):
        y, dash = _y(share), ' stroke-dasharray="4 4"' if share == sweep.limit else ""
        colour = "#c62828" if share == sweep.limit else "#dfe4ea"
        lines.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - 24}" y1="{y:.1f}" y2="{y:.1f}"'
            f' stroke="{colour}"{dash}/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#5c6675">'
            f"{100 * share:.0f} %</text>"
        )
    for x, point in zip(xs, sweep.points, strict=True):
        lines.append(
            f'<text x="{x:.1f}" y="{_HEIGHT - 36}" text-anchor="middle" fill="#1d2430">'
            f"{escape(_label(point, sweep))}</text>"
        )
    title = ", ".join(AXIS_TITLES[axis] for axis in sweep.axes)
    lines.append(
        f'<text x="{(_LEFT + _WIDTH) / 2:.0f}" y="{_HEIGHT - 12}" text-anchor="middle"'
        f' fill="#5c6675">{escape(title)}</text>'
    )
    return "\n".join(lines)
