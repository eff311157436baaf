"""Marker report -> text, JSON, Markdown."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from typing import Any

from hwtune.domain.answers import answers, remarks
from hwtune.domain.check_kernels import tallies
from hwtune.domain.check_records import Cause, Check, MarkerReport
from hwtune.domain.check_rules import show_value
from hwtune.domain.evidence import Evidence, Fact, Place

SCHEMA_VERSION = 1
_SIGNS = {"passed": "PASS", "failed": "FAIL", "skipped": "skip"}
_HIDDEN = ("first_error", "user_flags", "api_server")
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
    return "\n".join([*lines, "", report.summary])


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


def report_to_json(report: MarkerReport, evidence: Evidence) -> str:
    """For machines; the schema is ``docs/schemas/marker-report.json``."""
    return json.dumps(report_to_dict(report, evidence), indent=2, ensure_ascii=False)


def report_to_dict(report: MarkerReport, evidence: Evidence) -> dict[str, Any]:
    """The report as plain values."""
    return {
        "schema_version": SCHEMA_VERSION,
        "passed": report.passed,
        "summary": report.summary,
        "files": list(evidence.files),
        "answers": [
            {
                "id": item.id,
                "question": item.question,
                "answer": item.answer,
                "evidence": _places(item.evidence),
            }
            for item in answers(evidence, report)
        ],
        "checks": [_check_dict(check) for check in report.checks],
        "facts": {name: _fact_dict(fact) for name, fact in sorted(evidence.facts.items())},
        "kernels": [
            {
                "kernel": item.kernel,
                "hits": item.hits,
                "captured": item.captured,
                "faults": item.faults,
                "fallbacks": dict(item.fallbacks),
            }
            for item in tallies(evidence)
        ],
        "fallbacks": _places(evidence.fallbacks),
        "marks": [
            {"kind": mark.kind, "fields": dict(mark.fields), **_place(mark.place)}
            for mark in evidence.marks[:200]
        ],
        "request_errors": evidence.request_errors,
        "last_line": None if evidence.last_line is None else _place(evidence.last_line),
        "remarks": list(remarks(evidence)),
    }


def _check_dict(check: Check) -> dict[str, Any]:
    return {
        "name": check.name,
        "question": check.question,
        "status": check.status,
        "expected": check.expected,
        "seen": check.seen,
        "reason": check.reason,
        "evidence": _places(check.evidence),
        "diagnosis": [
            {
                "id": cause.id,
                "cause": cause.text,
                "for": list(cause.supports),
                "against": list(cause.contradicts),
                "next": cause.next_step,
            }
            for cause in check.diagnosis
        ],
    }


def _fact_dict(fact: Fact) -> dict[str, Any]:
    return {
        "value": list(fact.value) if isinstance(fact.value, tuple) else fact.value,
        "evidence": _places(fact.evidence),
        "sightings": fact.sightings,
        "others": [
            {
                "value": list(item.value) if isinstance(item.value, tuple) else item.value,
                "evidence": [_place(item.place)],
            }
            for item in fact.others
        ],
    }


def _places(places: Iterable[Place]) -> list[dict[str, Any]]:
    return [_place(place) for place in places]


def _place(place: Place) -> dict[str, Any]:
    return {
        "file": place.file,
        "line": place.line,
        "process": place.process,
        "time": place.time,
        "text": place.text,
    }


def report_to_markdown(report: MarkerReport, evidence: Evidence) -> str:
    """For a pull request."""
    lines = [f"**{_cell(report.summary)}**", "", "| check | result | expected | seen | evidence |"]
    lines.append("|---|---|---|---|---|")
    for check in report.checks:
        place = _where(check.evidence[0]) if check.evidence else ""
        seen = check.reason if check.status == "skipped" else check.seen
        cells = (check.name, _SIGNS[check.status], check.expected, seen, place)
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    for check in report.failed:
        lines += ["", f"**{_cell(check.name)}**: {_cell(check.reason)}", ""]
        for number, cause in enumerate(check.diagnosis, start=1):
            lines.append(f"{number}. {_cell(cause.text)} Next: {_cell(cause.next_step)}")
    lines += ["", "| question | answer |", "|---|---|"]
    lines += [
        f"| {_cell(item.question)} | {_cell(item.answer)} |" for item in answers(evidence, report)
    ]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
