"""Marker report -> JSON, as written beside a run and printed by ``--format json``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from hwtune.domain.answers import answers, remarks
from hwtune.domain.attn_states import attn_states
from hwtune.domain.check_kernels import tallies
from hwtune.domain.check_records import Check, MarkerReport
from hwtune.domain.checking import KernelCheck
from hwtune.domain.evidence import Evidence, Fact, Place

SCHEMA_VERSION = 1


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
        "starts": [
            {
                "number": item.number,
                "version": item.version,
                "outcome": item.outcome,
                "evidence": [] if item.place is None else [_place(item.place)],
            }
            for item in evidence.starts
        ],
        "judged_start": evidence.judged_start,
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
                "replayed": item.replayed,
                "faults": item.faults,
                "fallbacks": dict(item.fallbacks),
            }
            for item in tallies(evidence)
        ],
        "attn_states": _attn_states_dict(evidence),
        "numbers": [_numbers_dict(row) for row in evidence.kernel_checks],
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


def _attn_states_dict(evidence: Evidence) -> dict[str, Any] | None:
    states = attn_states(evidence.counts)
    if states is None:
        return None
    return {
        "processes": states.processes,
        "returned": dict(states.returned),
        "stored": dict(states.stored),
        "calls": [
            {
                "operator": call.operator,
                "state": call.state,
                "called": call.called,
                "recorded": call.recorded,
            }
            for call in states.calls
        ],
        "forwards": states.forwards,
    }


def _numbers_dict(row: KernelCheck) -> dict[str, Any]:
    return {
        "kernel": row.kernel,
        "layer": row.layer,
        "process": row.process,
        "tolerance": row.tolerance,
        "checked": row.checked,
        "failed": row.failed,
        "non_finite": row.non_finite,
        "worst_absolute": row.worst_absolute,
        "worst_relative": row.worst_relative,
        "worst_query_len": row.worst_query_len,
        "worst_context_len": row.worst_context_len,
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
