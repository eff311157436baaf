"""The doctor's report as text, Markdown and JSON. Computes nothing."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from typing import Any

from hwtune.domain.doctor.diagnose import STATUSES
from hwtune.domain.doctor.records import DoctorReport, Finding, Line
from hwtune.domain.plain_text import one_line
from hwtune.report.tables import markdown_cell, markdown_row

SCHEMA_VERSION = 1

_SIGNS = {"problem": "FAIL", "unknown": " ?? ", "warning": "warn", "ok": " ok "}
_TOPICS = {
    "accelerator": "Accelerator",
    "profile": "Profile",
    "engine": "vLLM, torch, triton",
    "environment": "Environment",
    "plugins": "Plugins",
    "leftovers": "Left by earlier servers",
    "limits": "Room and limits",
}
_INDENT = " " * 7
_EVIDENCE_LINES = 4


def doctor_to_text(report: DoctorReport) -> str:
    """For a terminal."""
    lines: list[str] = []
    for topic, title in _TOPICS.items():
        mine = [finding for finding in report.findings if finding.topic == topic]
        if mine:
            lines += [title, *(line for finding in mine for line in _text(finding)), ""]
    return "\n".join([*lines, report.summary])


def _text(finding: Finding) -> list[str]:
    lines = _wrapped(f"{_SIGNS[finding.status]} {finding.text}", "  ", _INDENT)
    if finding.status != "ok":
        lines += [f"{_INDENT}  {_where(line)}" for line in finding.evidence[:_EVIDENCE_LINES]]
        if more := len(finding.evidence) - _EVIDENCE_LINES:
            lines += [f"{_INDENT}  and {more} more: see --json"] if more > 0 else []
    if finding.advice:
        lines += _wrapped(f"do: {finding.advice}", _INDENT, _INDENT + "    ")
    return lines


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        one_line(text),
        width=100,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _where(line: Line) -> str:
    at = line.source if line.line is None else f"{line.source}:{line.line}"
    return one_line(f"{at}: {line.text}"[:240])


def doctor_to_markdown(report: DoctorReport) -> str:
    """For an issue: what is not in order first, then the rest folded away."""
    loud = [f for status in STATUSES[:-1] for f in report.findings if f.status == status]
    quiet = [finding for finding in report.findings if finding.status == "ok"]
    lines = [f"**hwtune doctor: {markdown_cell(report.summary)}**", ""]
    if report.profile:
        lines += [f"Profile: `{report.profile}`", ""]
    lines += [*_table(loud), ""] if loud else []
    lines += ["<details><summary>What is in order</summary>", "", *_table(quiet), "", "</details>"]
    return "\n".join(lines)


def _table(findings: list[Finding]) -> list[str]:
    rows = ["| result | what | evidence | what to do |", "|---|---|---|---|"]
    for finding in findings:
        evidence = "; ".join(_where(line) for line in finding.evidence[:_EVIDENCE_LINES])
        cells = (finding.status, finding.text, evidence, finding.advice)
        rows.append(markdown_row(cells))
    return rows


def doctor_to_json(report: DoctorReport) -> str:
    """For machines; the schema is ``docs/schemas/doctor-report.json``."""
    data: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "healthy": report.healthy,
        "summary": report.summary,
        "profile": report.profile,
        "devices": [dataclasses.asdict(device) for device in report.devices],
        "findings": [dataclasses.asdict(finding) for finding in report.findings],
        "commands": [
            {
                "command": output.command,
                "installed": output.installed,
                "failure": output.failure,
            }
            for output in report.commands
        ],
    }
    return json.dumps(data, indent=2, ensure_ascii=False)
