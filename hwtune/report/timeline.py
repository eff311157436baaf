"""A run as one self-contained HTML file: requests as rows, steps as columns, colour is the path."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

from hwtune.domain.scheduler.prediction import OWN_PATH
from hwtune.domain.scheduler.timeline import ShownStep, Timeline, row_work
from hwtune.io.assets import read_asset

_OWN_COLOUR: Final = "#d98c1f"
_COLOURS: Final = ("#1f6fb4", "#1a9674", "#b0478f", "#6a51a3", "#3b9fc4", "#8c6d31")
"""Told apart by people who do not see red and green alike."""
_WORK: Final = ("prompt", "decode", "verify", "recompute")


def timeline_html(timeline: Timeline, *, title: str, subtitle: str, budget: int) -> str:
    """The whole document. It loads nothing from anywhere."""
    data = timeline_data(timeline, title=title, subtitle=subtitle, budget=budget)
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    # Inside a script element only this could end it early.
    return read_asset("timeline.html").replace("/*DATA*/", text.replace("<", "\\u003c"))


def timeline_data(timeline: Timeline, *, title: str, subtitle: str, budget: int) -> dict[str, Any]:
    """What the page draws."""
    names = [*(spec.name for spec in timeline.paths.kernels), OWN_PATH]
    counts = Counter(shown.path for shown in timeline.steps if shown.rows)
    index = {name: at for at, name in enumerate(timeline.items)}
    waits = _waiting(timeline)
    colours = (*_COLOURS[: len(names) - 1], _OWN_COLOUR)
    return {
        "title": title,
        "subtitle": subtitle,
        "budget": budget,
        "counted": counts.total(),
        "total_steps": timeline.total_steps,
        "most_free": max((shown.step.free for shown in timeline.steps), default=0),
        "paths": [
            {"name": name, "colour": colours[at % len(colours)], "steps": counts[name]}
            for at, name in enumerate(names)
        ],
        "requests": [
            {
                "name": item.id,
                "prompt": item.prompt_tokens,
                "output": item.output_tokens,
                "waiting": waits[item.id],
            }
            for item in timeline.items.values()
        ],
        "steps": [_step(shown, names, index) for shown in timeline.steps],
    }


def _waiting(timeline: Timeline) -> dict[str, list[list[int]]]:
    """Request -> columns [from, to) in which it waited."""
    found: dict[str, list[list[int]]] = {name: [] for name in timeline.items}
    for at, shown in enumerate(timeline.steps):
        for name in shown.step.waiting:
            spans = found.get(name)
            if spans is None:
                continue
            if spans and spans[-1][1] == at:
                spans[-1][1] = at + 1
            else:
                spans.append([at, at + 1])
    return found


def _step(shown: ShownStep, names: list[str], index: dict[str, int]) -> dict[str, Any]:
    step = shown.step
    return {
        "index": step.index,
        "path": names.index(shown.path),
        "why": list(shown.reasons) if shown.path == OWN_PATH else [],
        "state": None if shown.ascend is None else shown.ascend.v1,
        "total": step.total,
        "free": step.free,
        "waiting": len(step.waiting),
        "preempted": [index[name] for name in step.preempted if name in index],
        "rows": [
            [index[row.id], row.tokens, row.computed, row.drafts, _WORK.index(row_work(row))]
            for row in shown.rows
            if row.id in index
        ],
    }
