"""When there is nothing more to wait for in a log that still grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from hwtune.domain.check_records import MarkerReport
    from hwtune.domain.evidence import Evidence

Until = Literal["startup", "expected", "stopped"]
"""The start completed or failed; everything expected was seen; the server stopped or died."""

AFTER_START_S = 1.0
"""A port that is refused is reported right after ``Application startup complete.``"""
AFTER_FAILURE_S = 5.0
"""Processes that waited for the one that failed give up within seconds; one that goes on printing
may have survived."""


def quiet_needed_s(until: Until, evidence: Evidence, report: MarkerReport) -> float | None:
    """Seconds without a new line after which the wait is over; None while it must go on.

    Args:
        until: what is waited for.
        evidence: so far.
        report: what the checks say so far.
    """
    from hwtune.domain.failures import first_cause  # the command line itself needs only Until

    cause = first_cause(evidence)
    started = evidence.value("startup_complete") is True or evidence.value("served") is True
    if cause is not None and (cause.phase == "serving" or not started):
        return AFTER_FAILURE_S
    if evidence.value("stopping") is True:
        return AFTER_START_S
    if not started or until == "stopped":
        return None
    if until == "startup" or all(check.status == "passed" for check in report.checks):
        return AFTER_START_S
    return None
