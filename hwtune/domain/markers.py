"""Evidence + expectation -> a report of checks, each passed, failed or skipped with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hwtune.domain.check_capacity import capacity_check
from hwtune.domain.check_live import live_checks
from hwtune.domain.check_records import Cause, Check, DiagnosisRule, MarkerReport
from hwtune.domain.check_rules import all_checks
from hwtune.domain.diagnosis import explain, symptoms_for, symptoms_of
from hwtune.domain.evidence import Evidence
from hwtune.domain.launch import Expectation
from hwtune.domain.page_steps import PageDerivation

__all__ = ["Cause", "Check", "DiagnosisRule", "MarkerReport", "check"]


def check(
    evidence: Evidence,
    expect: Expectation | None,
    *,
    require_kernel_hits: bool,
    facts: Mapping[str, str] | None = None,
    diagnoses: tuple[DiagnosisRule, ...] = (),
    page: PageDerivation | None = None,
) -> MarkerReport:
    """Compares what was seen with what was expected.

    Args:
        evidence: of one server.
        expect: of the plan or the command line; None checks only the server's health.
        require_kernel_hits: whether kernels that were not called yet are a failure. Right after
            the start no request has been served, so none can have been.
        facts: other facts by name and the text they must have.
        diagnoses: rules that name likely causes of failed checks.
        page: derived for this server, to compare its capacity with.
    """
    checks = all_checks(
        evidence, expect, require_kernel_hits=require_kernel_hits, facts=facts or {}
    )
    checks = (*checks, *live_checks(evidence))
    if page is not None:
        checks = (*checks, capacity_check(evidence, page))
    symptoms = symptoms_of(evidence, expect)
    return MarkerReport(
        checks=tuple(
            replace(
                item, diagnosis=explain(item, symptoms_for(item, evidence, symptoms), diagnoses)
            )
            if item.status == "failed"
            else item
            for item in checks
        )
    )
