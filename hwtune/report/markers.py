"""Marker report -> text and Markdown; JSON is written by ``hwtune.io.marker_reports``."""

from __future__ import annotations

import textwrap

from hwtune.domain.answers import answers, remarks
from hwtune.domain.check_records import Cause, Check, MarkerReport
from hwtune.domain.check_rules import show_value
from hwtune.domain.evidence import Evidence, Place
from hwtune.domain.plain_text import one_line
from hwtune.io.marker_reports import report_to_json
from hwtune.report.tables import markdown_cell, markdown_row

__all__ = ["report_to_json", "report_to_markdown", "report_to_text"]

_SIGNS = {"passed": "PASS", "failed": "FAIL", "skipped": "skip"}
_HIDDEN = ("first_error", "user_flags", "api_server", "engine_config")
_INDENT = " " * 7


def report_to_text(report: MarkerReport, evidence: Evidence) -> str:
    """For a terminal or a CI log: answers, checks with causes, facts, verdict."""
    lines = [f"read {', '.join(evidence.files) or 'no log'}", ""]
    for item in answers(evidence, report):
        lines.append(f"{item.question}")
        lines.extend(_wrapped(item.answer, "  "))
    lines += ["", "checks"]
    for check in report.checks:
        lines.extend(_check_lines(check))
    lines += ["", "facts", *_fact_lines(evidence)]
    if evidence.fallbacks:
        lines += ["", "attention fall-backs", *(f"  {_at(place)}" for place in evidence.fallbacks)]
    notes = remarks(evidence)
    if notes:
        lines += ["", "remarks", *(line for note in notes for line in _wrapped(note, "  - "))]
    return "\n".join(map(one_line, [*lines, "", report.summary]))


def _check_lines(check: Check) -> list[str]:
    shown = check.reason or check.seen
    lines = _wrapped(f"{_SIGNS[check.status]} {check.name}: {shown}", "  ")
    lines += [f"{_INDENT}{_at(place)}" for place in check.evidence[:2]]
    for number, cause in enumerate(check.diagnosis, start=1):
        lines.extend(_cause_lines(number, cause))
    return lines


def _cause_lines(number: int, cause: Cause) -> list[str]:
    lines = _wrapped(f"{number}. {cause.text}", _INDENT)
    for title, items in (("for", cause.supports), ("against", cause.contradicts)):
        lines += [line for item in items for line in _wrapped(f"{title}: {item}", _INDENT + "   ")]
    return lines + _wrapped(f"next: {cause.next_step}", _INDENT + "   ")


def _fact_lines(evidence: Evidence) -> list[str]:
    facts = [fact for fact in evidence.facts.values() if fact.name not in _HIDDEN]
    width = max((len(fact.name) for fact in facts), default=0)
    lines = []
    for fact in sorted(facts, key=lambda item: item.name):
        place = _where(fact.evidence[0]) if fact.evidence else ""
        more = f" and {fact.sightings - 1} more" if fact.sightings > 1 else ""
        lines.append(f"  {fact.name:<{width}}  {show_value(fact.value)}  ({place}{more})")
    return lines


class FactFeed:
    """Facts and failures of a log that grows, each line once."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}
        self._failures: set[Place] = set()

    def new_lines(self, evidence: Evidence) -> list[str]:
        """What is new or has changed since the last call."""
        lines = []
        for name, fact in evidence.facts.items():
            text = show_value(fact.value)
            settled = name not in (*_HIDDEN, "startup_complete") or fact.value is True
            if name not in _HIDDEN and settled and self._shown.get(name) != text:
                self._shown[name] = text
                lines.append(one_line(f"{name} {text}  ({_where(fact.evidence[0])})"))
        for failure in evidence.failures:  # some are taken back when the start completes
            if failure.place not in self._failures:
                self._failures.add(failure.place)
                lines.append(one_line(f"failure: {failure.text[:160]}  ({_where(failure.place)})"))
        return lines


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        width=100,
        initial_indent=indent,
        subsequent_indent=" " * (len(indent) + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _where(place: Place) -> str:
    at = place.file if place.line is None else f"{place.file}:{place.line}"
    return f"{at}, {place.process}" if place.process else at


def _at(place: Place) -> str:
    return f"{_where(place)}: {place.text[:160]}"


def report_to_markdown(report: MarkerReport, evidence: Evidence) -> str:
    """For a pull request."""
    lines = [
        f"**{markdown_cell(report.summary)}**",
        "",
        "| check | result | expected | seen | evidence |",
    ]
    lines.append("|---|---|---|---|---|")
    for check in report.checks:
        place = _where(check.evidence[0]) if check.evidence else ""
        seen = check.reason if check.status == "skipped" else check.seen
        cells = (check.name, _SIGNS[check.status], check.expected, seen, place)
        lines.append(markdown_row(cells))
    for check in report.failed:
        lines += ["", f"**{markdown_cell(check.name)}**: {markdown_cell(check.reason)}", ""]
        for number, cause in enumerate(check.diagnosis, start=1):
            lines.append(
                f"{number}. {markdown_cell(cause.text)} Next: {markdown_cell(cause.next_step)}"
            )
    lines += ["", "| question | answer |", "|---|---|"]
    lines += [
        f"| {markdown_cell(item.question)} | {markdown_cell(item.answer)} |"
        for item in answers(evidence, report)
    ]
    return "\n".join(lines)
