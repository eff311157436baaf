"""From everything that was read to one report."""

from __future__ import annotations

from collections.abc import Sequence

from hwtune.domain.doctor.accelerators import accelerator_findings, devices, processes
from hwtune.domain.doctor.ascend import ascend_findings
from hwtune.domain.doctor.engine import engine_findings
from hwtune.domain.doctor.environment import environment_findings
from hwtune.domain.doctor.imports import import_findings
from hwtune.domain.doctor.leftovers import leftover_findings
from hwtune.domain.doctor.libraries import library_findings
from hwtune.domain.doctor.limits import limit_findings
from hwtune.domain.doctor.plugins import plugin_findings
from hwtune.domain.doctor.profile_fit import choose, profile_findings
from hwtune.domain.doctor.records import DoctorReport, Facts, Finding, Status
from hwtune.domain.hardware import HardwareProfile

STATUSES: tuple[Status, ...] = ("problem", "unknown", "warning", "ok")


def diagnose(
    facts: Facts, profiles: Sequence[HardwareProfile], named: HardwareProfile | None
) -> DoctorReport:
    """Every finding about a machine.

    Args:
        facts: what was read.
        profiles: all packaged profiles.
        named: the profile the user asked for; None lets the devices decide.
    """
    found = devices(facts)
    target = choose(found, profiles, named)
    findings = (
        *accelerator_findings(facts, found),
        *profile_findings(target, found, profiles, named=named is not None),
        *engine_findings(facts, target),
        *ascend_findings(facts, target),
        *library_findings(facts, target),
        *import_findings(facts, target),
        *environment_findings(facts, target),
        *plugin_findings(facts, target),
        *leftover_findings(facts, target, found, processes(facts)),
        *limit_findings(facts, target),
    )
    return DoctorReport(
        summary=_summary(findings),
        profile=target.profile.name if target.profile else None,
        devices=found,
        findings=findings,
        commands=tuple(facts.commands.values()),
    )


def _summary(findings: Sequence[Finding]) -> str:
    counts = {status: sum(f.status == status for f in findings) for status in STATUSES}
    named = {"problem": "problems", "unknown": "unknown", "warning": "warnings", "ok": "ok"}
    shown = ", ".join(f"{count} {named[status]}" for status, count in counts.items() if count)
    verdict = "problems found" if counts["problem"] else "no problem found"
    return f"{verdict}: {shown}"
