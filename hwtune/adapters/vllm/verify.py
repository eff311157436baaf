"""Checks a server's run directory against its plan, and keeps the report beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hwtune.domain.collecting import EvidenceCollector
from hwtune.domain.errors import HwtuneError
from hwtune.domain.evidence import Evidence
from hwtune.domain.failures import first_cause
from hwtune.domain.launch import LaunchPlan
from hwtune.domain.markers import MarkerReport, check
from hwtune.io.marker_reports import report_to_json
from hwtune.io.marker_sets import load_diagnoses, load_markers
from hwtune.io.plans import PLAN_FILE, read_plan
from hwtune.io.run_dir import REPORT_FILE, write_quietly
from hwtune.io.run_evidence import collect


def verify_run(
    run_dir: Path, *, require_kernel_hits: bool, plan: LaunchPlan | None = None
) -> MarkerReport:
    """Whether the server of a run directory was what its plan says.

    Args:
        run_dir: what ``hwtune serve`` wrote; the server may still run.
        require_kernel_hits: whether a planned kernel without a counted hit is a failure; before
            any request was served it is not.
        plan: the plan as the launcher holds it; read from the run directory when None.

    Raises:
        InputError: the run directory lacks its plan or holds damaged evidence.
    """
    evidence = collect(run_dir, plan=plan)
    plan = plan or read_plan(run_dir / PLAN_FILE)
    report = check(
        evidence,
        plan.expect,
        require_kernel_hits=require_kernel_hits,
        diagnoses=load_diagnoses(),
    )
    write_quietly(run_dir / REPORT_FILE, report_to_json(report, evidence))
    return report


def cause_of_death(run_dir: Path, tail: Sequence[str] = ()) -> str | None:
    """The first thing that went wrong, as ``text (file:line)``; None when nothing shows it.

    Args:
        run_dir: what ``hwtune serve`` wrote.
        tail: the last lines of the log, for a run directory that is gone or damaged.
    """
    evidence = _last_words(run_dir, tail)
    failure = first_cause(evidence)
    if failure is not None:
        return f"{failure.text} ({failure.place.file}:{failure.place.line})"
    if evidence.last_line is not None:
        return f"the log just ends; its last line is: {evidence.last_line.text}"
    return None


def _last_words(run_dir: Path, tail: Sequence[str]) -> Evidence:
    try:
        evidence = collect(run_dir)
    except HwtuneError:
        evidence = Evidence()
    if evidence.files or not tail:
        return evidence
    collector = EvidenceCollector(load_markers())
    collector.feed("last lines of the log", enumerate(tail, start=1))
    return collector.evidence()
