"""A sweep of launch constants as text, Markdown, CSV or JSON. Computes nothing."""

from __future__ import annotations

from hwtune.domain.kernel_sweep import Sweep, Trial
from hwtune.report.tables import Cell, Column, Format, Table, render

_COUNTS = (
    Column(key="registers", title="regs"),
    Column(key="spill_bytes", title="spill B"),
    Column(key="shared_bytes", title="shared B"),
    Column(key="loop_instructions", title="loop"),
    Column(key="wide_loads", title="16-B loads"),
    Column(key="narrow_loads", title="others"),
    Column(key="per_16_tokens", title="instr/16 tok", decimals=0),
    Column(key="warp_work", title="work", decimals=0),
)


def to_text(sweep: Sweep, form: Format) -> str:
    """Every trial, the best first, and for people how it was scored."""
    names = tuple(sweep.trials[0].tuning) if sweep.trials else ()
    timed = tuple(dict.fromkeys(name for trial in sweep.trials for name, _ in trial.microseconds))
    columns = (
        *(Column(key=name, title=name) for name in names),
        *(() if timed else _COUNTS),
        *(Column(key=f"us {name}", title=f"{name}, us", decimals=1) for name in timed),
        Column(key="score", title="score", suffix="x"),
        Column(key="note", title="against it"),
    )
    rows = tuple(_cells(trial, names, timed) for trial in sweep.trials)
    title = f"{sweep.implementation} on {sweep.where}; {sweep.shape}, page {sweep.page}"
    text = render(Table(columns=columns, rows=rows, title=title), form) + "\n"
    return text if form in (Format.JSON, Format.CSV) else text + _legend(sweep)


def _cells(trial: Trial, names: tuple[str, ...], timed: tuple[str, ...]) -> tuple[Cell, ...]:
    times = dict(trial.microseconds)
    counts = () if timed else tuple(getattr(trial.row, c.key, None) for c in _COUNTS)
    return (
        *(trial.tuning.get(name) for name in names),
        *counts,
        *(times.get(name) for name in timed),
        trial.score,
        trial.note or None,
    )


def _legend(sweep: Sweep) -> str:
    meaning = "score: relative to vLLM's generic kernel, lower is better; by " + sweep.scored_by
    lines = ["", meaning]
    if sweep.baseline is not None:
        lines.append(
            "a compiled score is of the instructions that one processor must issue in sequence, "
            "over as many warps as fit: a model, to be confirmed on the device"
        )
    return "\n".join([*lines, *sweep.notes]) + "\n"
