"""Is the evidence complete, and does the server do its work?"""

from __future__ import annotations

from collections.abc import Iterator

from hwtune.domain.check_records import Check
from hwtune.domain.evidence import Evidence


def evidence_checks(evidence: Evidence) -> Iterator[Check]:
    """A failed check for what was lost and for what the watchdog saw; nothing when all is well."""
    status = evidence.status
    if status is not None and status.trouble is not None:
        yield Check(
            name="progress",
            question="Did the server get on with its work?",
            status="failed",
            expected="answers and tokens",
            seen=status.trouble,
            reason=f"stuck: {status.trouble}",
            evidence=(status.place,),
        )
    marks = [mark for mark in evidence.marks if mark.kind == "evidence lost"]
    kept = () if status is None else status.evidence_lost
    said = (mark.fields.get("reason", "no reason given") for mark in marks)
    lost = tuple(dict.fromkeys((*evidence.lost, *kept, *said)))
    if lost:
        more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        yield Check(
            name="evidence",
            question="Was all evidence kept?",
            status="failed",
            expected="nothing lost",
            seen="; ".join(lost),
            reason=f"evidence lost: {lost[0]}{more}",
            evidence=tuple(mark.place for mark in marks[:3]),
        )
