"""Checks a server's run directory against its plan, and keeps the report beside it."""

from __future__ import annotations

from pathlib import Path

from hwtune.domain.evidence import Evidence
from hwtune.domain.failures import first_cause
from hwtune.domain.markers import MarkerReport, check
from hwtune.io.marker_reports import report_to_json
from hwtune.io.marker_sets import load_diagnoses
from hwtune.io.plans import PLAN_FILE, read_plan
from hwtune.io.run_dir import REPORT_FILE, write_quietly
from hwtune.io.run_evidence import collect


def verify_run(run_dir: Path, *, require_kernel_hits: bool) -> MarkerReport:
    """Whether the server of a run directory was what its plan says.

    Args:
        run_dir: what ``hwtune serve`` wrote; the server may still run.
        require_kernel_hits: whether a planned kernel without a counted hit is a failure; before
            any request was served it is not.

    Raises:
        InputError: the run directory lacks its plan or holds damaged evidence.
    """
    evidence = collect(run_dir)
    plan = read_plan(run_dir / PLAN_FILE)
    report = check(
        evidence,
        plan.expect,
        require_kernel_hits=require_kernel_hits,
        diagnoses=load_diagnoses(),
    )
    write_quietly(run_dir / REPORT_FILE, report_to_json(report, evidence))
    return report


def cause_of_death(run_dir: Path) -> str | None:
    """The first thing that went wrong, as ``text (file:line)``; None when the log shows nothing."""
    evidence: Evidence = collect(run_dir)
    failure = first_cause(evidence)
    if failure is not None:
        return f"{failure.text} ({failure.place.file}:{failure.place.line})"
    if evidence.last_line is not None:
        return f"the log just ends; its last line is: {evidence.last_line.text}"
    return None
