"""Did the server start, and did it stay up?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hwtune.domain.check_records import Check
from hwtune.domain.evidence import Evidence, Fact, Failure, Place, RunStatus
from hwtune.domain.failures import first_cause

_QUESTION = "Did start-up complete?"


def health_checks(evidence: Evidence) -> Iterator[Check]:
    """Start-up, and failures after it."""
    startup = _startup(evidence)
    yield startup
    later = next((f for f in evidence.failures if f.phase == "serving" and not f.wrapper), None)
    later = later or next((f for f in evidence.failures if f.phase == "serving"), None)
    if later is not None:
        yield Check(
            name="health",
            question="Did the server stay up after its start?",
            status="failed",
            expected="no failure after start-up",
            seen=later.text,
            reason=f"failed while serving: {where(later.place)}: {later.text}",
            evidence=(later.place,),
        )
    elif startup.status == "passed" and evidence.status is not None:
        yield from _launcher(evidence.status)


def with_start_outcome(evidence: Evidence) -> Evidence:
    """States ``startup_complete=False`` where the evidence shows a start that did not complete.

    Lines that state nothing of vLLM show no start, and nothing is said of it.
    """
    startup = _startup(evidence)
    shows_start = bool(evidence.facts) or bool(evidence.failures)
    if not shows_start or startup.status != "failed" or not startup.evidence:
        return evidence
    fact = Fact(name="startup_complete", value=False, evidence=startup.evidence, sightings=1)
    return replace(evidence, facts={**evidence.facts, fact.name: fact})


def start_outcome(evidence: Evidence) -> str:
    """How the start went, in one line."""
    startup, *others = health_checks(evidence)
    later = next((item for item in others if item.status == "failed"), None)
    if later is not None:
        return f"started, then {later.reason}"
    if startup.status == "passed":
        return startup.seen
    return startup.reason if startup.evidence else "did not complete"


def _launcher(status: RunStatus) -> Iterator[Check]:
    if status.owner_gone is not None:
        yield Check(
            name="health",
            question="Did the server stay up after its start?",
            status="failed",
            expected="the launcher runs, or says how the server ended",
            seen=_gone(status.owner_gone),
            reason=f"{_gone(status.owner_gone)}, and the server with it",
            evidence=(status.place,),
        )


def _gone(pid: int) -> str:
    return f"hwtune (pid {pid}) is gone; it was killed"


def _startup(evidence: Evidence) -> Check:
    status = evidence.status
    if evidence.value("startup_complete") is True:
        return _started(evidence.places("startup_complete"), "start-up complete")
    if status is not None and status.state == "ready" and status.owner_gone is None:
        return _started((status.place,), "the launcher saw the server ready")
    if evidence.value("served") is True and not _start_failure(evidence):
        return _started(evidence.places("served"), "serves requests")
    failure = _start_failure(evidence)
    if failure is not None:
        return _failed(failure.text, f"{where(failure.place)}: {failure.text}", (failure.place,))
    if status is not None and status.state == "died":
        text = status.reason or f"exit code {status.exit_code}"
        return _failed(f"died: {text}", _died(evidence, text), (status.place,))
    if status is not None and status.owner_gone is not None:
        return _failed(f"state={status.state}", _gone(status.owner_gone), (status.place,))
    if evidence.value("engine_ready") is True and evidence.value("api_server") is None:
        return Check(
            name="startup",
            question=_QUESTION,
            status="skipped",
            reason="the engine is ready; no API server in this log (offline use)",
            evidence=evidence.places("engine_ready"),
        )
    return _unfinished(evidence)


def _start_failure(evidence: Evidence) -> Failure | None:
    cause = first_cause(evidence)
    return cause if cause is not None and cause.phase == "start" else None


def _started(places: tuple[Place, ...], seen: str) -> Check:
    return Check(
        name="startup",
        question=_QUESTION,
        status="passed",
        expected="start-up complete",
        seen=seen,
        evidence=places,
    )


def _failed(seen: str, reason: str, places: tuple[Place, ...]) -> Check:
    return Check(
        name="startup",
        question=_QUESTION,
        status="failed",
        expected="start-up complete",
        seen=seen,
        reason=reason,
        evidence=places,
    )


def _died(evidence: Evidence, text: str) -> str:
    last = evidence.last_line
    tail = "" if last is None else f"; last line seen {where(last)}: {last.text}"
    return f"the server died ({text}) without logging a cause{tail}"


def _unfinished(evidence: Evidence) -> Check:
    last = evidence.last_line
    if last is None:
        return _failed("nothing", "there is no log line at all", ())
    reason = f"the log ends before start-up completed; last line seen {where(last)}: {last.text}"
    return _failed("the log just ends", reason, (last,))


def where(place: Place) -> str:
    """``file:line``, or the file alone."""
    return place.file if place.line is None else f"{place.file}:{place.line}"
