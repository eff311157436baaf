"""The step table: cursor, budget, chunk, blocks and state of every scheduled row, 100 columns wide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from hwtune.domain.scheduler.timeline import ShownStep, Timeline, row_work
from hwtune.report.tables import Cell, Column, Table, columns

_LONGEST_NAME: Final = 8


def step_table(timeline: Timeline, most_steps: int) -> Table:
    """One line per scheduled row; what concerns the whole step stands in its first line."""
    rows = tuple(row for shown in timeline.steps[:most_steps] for row in _rows(shown))
    ascend = timeline.ascend is not None
    shown_columns = columns(
        "step=step",
        "request=request",
        "work=work",
        Column(key="cursor", title="cursor"),
        Column(key="target", title="of"),
        "chunk=chunk",
        Column(key="budget_left", title="left"),
        "blocks=blocks",
        "free=free",
        "event=event",
        "path=state" if ascend else "path=path",
        *(("gdn=GDN",) if ascend else ()),
    )
    return Table(columns=shown_columns, rows=rows)


def _rows(shown: ShownStep) -> Iterator[tuple[Cell, ...]]:
    step = shown.step
    left = step.budget_left + step.total
    path = shown.path if shown.ascend is None else shown.ascend.v1
    events = [f"-{_short(name)}" for name in step.preempted]
    gdn: tuple[Cell, ...] = ()
    if shown.ascend is not None:
        gdn = (f"{shown.ascend.gdn_split.num_decodes}d {shown.ascend.gdn_split.num_prefills}p",)
    for at, row in enumerate(shown.rows):
        left -= row.tokens
        mine: list[str] = [] if row.kind == "running" else [row.kind]
        if row.id in step.finished:
            mine.append("done")
        yield (
            step.index if at == 0 else "",
            _short(row.id),
            row_work(row),
            f"{row.computed}>{row.computed + row.tokens}",
            row.known,
            row.tokens,
            left,
            _blocks(step.held.get(row.id, ())),
            step.free if at == 0 else "",
            " ".join((*mine, *(events if at == 0 else ()))),
            path if at == 0 else "",
            *(gdn if at == 0 else ("",) * len(gdn)),
        )


def _blocks(held: Sequence[int]) -> str:
    """Blocks per cache group: ``7+3x1`` for one group with 7 and three with 1."""
    runs = [(count, len(tuple(group))) for count, group in groupby(held)]
    return "+".join(f"{times}x{count}" if times > 1 else f"{count}" for count, times in runs)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "~"
