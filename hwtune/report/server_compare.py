"""Comparison of two servers -> text, JSON, Markdown."""

from __future__ import annotations

import json
import textwrap

from hwtune.domain.evidence import Place
from hwtune.domain.plain_text import one_line
from hwtune.domain.server_compare import Difference, ServerComparison
from hwtune.report.tables import markdown_row, markdown_text

_MAX_CHARS = 120


def comparison_to_text(comparison: ServerComparison) -> str:
    """For a terminal: one line per difference, the undeclared first."""
    ordered = sorted(comparison.differences, key=lambda item: (not item.decides, item.fact))
    width = max((len(item.fact) for item in ordered), default=0)
    lines = ["differs"]
    for item in ordered:
        lines.append(f"  {item.fact:<{width}}  {_shown(item.a)} | {_shown(item.b)}  {_note(item)}")
    if not ordered:
        lines = ["nothing differs"]
    alike = textwrap.wrap(
        f"alike: {', '.join(_alike(comparison.same)) or 'nothing'}",
        width=100,
        subsequent_indent="  ",
        break_on_hyphens=False,
    )
    return "\n".join(map(one_line, [*lines, "", *alike, "", comparison.summary]))


_GROUPS = {
    "config ": "fields of the engine's config",
    "flag ": "flags",
    "package ": "packages",
    "env ": "environment variables",
    "machine ": "facts of the machine",
}


def _alike(names: tuple[str, ...]) -> list[str]:
    """Facts by name; what there are hundreds of, by number."""
    single = [name for name in names if not name.startswith(tuple(_GROUPS))]
    counts = {title: sum(n.startswith(p) for n in names) for p, title in _GROUPS.items()}
    return [*single, *(f"{number} {title}" for title, number in counts.items() if number)]


def _note(item: Difference) -> str:
    if item.declared:
        return "(declared)"
    return "(NOT DECLARED)" if item.decides else "(stated on one side only)"


def _shown(text: str | None) -> str:
    if text is None:
        return "not stated"
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 1]}…"


def comparison_to_json(comparison: ServerComparison) -> str:
    """For machines."""
    data = {
        "schema_version": 1,
        "fair": comparison.fair,
        "summary": comparison.summary,
        "problems": list(comparison.problems),
        "not_recorded": list(comparison.unseen),
        "same": list(comparison.same),
        "differences": [
            {
                "fact": item.fact,
                "a": item.a,
                "b": item.b,
                "declared": item.declared,
                "decides": item.decides,
                "evidence_a": [_place(place) for place in item.evidence_a],
                "evidence_b": [_place(place) for place in item.evidence_b],
            }
            for item in comparison.differences
        ],
    }
    return json.dumps(data, indent=2, ensure_ascii=False)


def _place(place: Place) -> dict[str, str | int | None]:
    return {"file": place.file, "line": place.line, "text": place.text}


def comparison_to_markdown(comparison: ServerComparison) -> str:
    """For a pull request."""
    lines = [
        f"**{markdown_text(comparison.summary)}**",
        "",
        "| fact | A | B | |",
        "|---|---|---|---|",
    ]
    for item in comparison.differences:
        lines.append(markdown_row((item.fact, _shown(item.a), _shown(item.b), _note(item))))
    return "\n".join(lines)
