"""Did each kernel hit? Registered is not used: only a counted call is a hit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hwtune.domain.check_records import Check, CheckStatus
from hwtune.domain.evidence import Evidence, KernelCount, Mark, Place
from hwtune.domain.launch import Expectation
from hwtune.domain.rank_hits import left_out, rank_tallies, seen_by_rank, silent_ranks

NOT_VERIFIED = "nonce not verified; pass --nonce or --run-dir"
_CALL_REASONS = (
    "more than one sequence",
    "query shorter than ",
    "query longer than ",
    "padded or mixed batch",
    "speculative verification",
    "context shorter than ",
    "graph capture",
)
"""How ``call_refusal`` (hwtune/domain/kernel.py) words what another request would change."""
_PRESENT = ("registered", "observing", "counting")
_OWN_OUTCOMES = ("hit", "captured", "replayed", "fallback", "fault")
"""Of hwtune's kernels; others count what the engine does by itself."""
_EXPECTED = "at least one counted call"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTally:
    """All calls of one kernel over all processes."""

    kernel: str
    hits: int
    captured: int
    faults: int
    fallbacks: tuple[tuple[str, int], ...]
    """Reason and calls, the most frequent first."""
    replayed: int = 0
    """Calls inside graphs that were replayed."""


def tally(counts: tuple[KernelCount, ...], kernel: str) -> KernelTally:
    """Adds up the processes."""
    mine = [count for count in counts if count.kernel == kernel]
    reasons: dict[str, int] = {}
    for count in mine:
        if count.outcome == "fallback":
            reasons[count.reason] = reasons.get(count.reason, 0) + count.calls

    def total(outcome: str) -> int:
        return sum(count.calls for count in mine if count.outcome == outcome)

    return KernelTally(
        kernel=kernel,
        hits=total("hit"),
        captured=total("captured"),
        faults=total("fault"),
        replayed=total("replayed"),
        fallbacks=tuple(sorted(reasons.items(), key=lambda item: -item[1])),
    )


def tallies(evidence: Evidence) -> tuple[KernelTally, ...]:
    """One tally per kernel that was counted, in order of first appearance."""
    own = (count for count in evidence.counts if count.outcome in _OWN_OUTCOMES)
    names = dict.fromkeys(count.kernel for count in own)
    return tuple(tally(evidence.counts, name) for name in names)


def kernel_checks(
    evidence: Evidence, expect: Expectation | None, *, require_hits: bool
) -> Iterator[Check]:
    """Plugin present, every expected kernel hit, no fault, nothing run in a baseline."""
    wanted = () if expect is None else expect.kernels
    if wanted or evidence.plan is not None or evidence.other_runs:
        yield _plugin(evidence)
    for kernel in wanted:
        yield _kernel(evidence, kernel, require_hits=require_hits)
    yield from _faults(evidence)
    if evidence.plan is not None and evidence.plan.arm == "baseline":
        yield _baseline(evidence)


def _plugin(evidence: Evidence) -> Check:
    question = "Is the plugin in the vLLM processes? (registered is not used)"
    refused = [mark for mark in evidence.marks if mark.kind == "refused"]
    present = [mark for mark in evidence.marks if mark.kind in _PRESENT]
    if evidence.other_runs:
        nonces = ", ".join(evidence.other_runs)
        reason = f"the log is of another run (nonce {nonces}); this run's is {evidence.nonce}"
        return _check("plugin", question, "failed", reason, f"nonce {nonces}", ())
    if refused:
        reason = f"the plugin refused: {refused[0].fields.get('reason', 'no reason given')}"
        return _check("plugin", question, "failed", reason, "refused", (refused[0].place,))
    if present:
        kind = present[0].kind
        seen = kind if evidence.nonce_verified else f"{kind} ({NOT_VERIFIED})"
        return _check("plugin", question, "passed", "", seen, tuple(m.place for m in present[:3]))
    if evidence.counts:
        return _check("plugin", question, "passed", "", "counted calls of this run", ())
    reason = "no line of this run's plugin in the log"
    if evidence.foreign_marks:
        reason += f"; {evidence.foreign_marks} marker texts of another run or quoted in messages"
    return _check("plugin", question, "failed", reason, "not seen", ())


def _kernel(evidence: Evidence, kernel: str, *, require_hits: bool) -> Check:
    name, question = f"kernel:{kernel}", f"Was {kernel} called?"
    counted = tally(evidence.counts, kernel)
    first = [m for m in evidence.marks if _is(m, "first hit", kernel)]
    places = tuple(mark.place for mark in first[:3])
    status: CheckStatus = "failed" if require_hits else "skipped"
    seen = _without_hit(counted) or "0 calls"
    if counted.hits:
        ranks = rank_tallies(evidence, kernel)
        missing = left_out(ranks, is_call_reason) or silent_ranks(ranks, evidence)
        status, seen, reason = "passed", seen_by_rank(ranks), ""
        if missing:
            status, reason = "failed", missing
    elif counted.replayed:
        seen = f"{counted.replayed} calls in replayed graphs"
        status, reason = "passed", ""
    elif first and not evidence.has_counters and evidence.nonce_verified:
        seen = "first hit logged; no counters, so the number of calls is unknown"
        status, reason = "passed", ""
    elif first and not evidence.has_counters:
        seen = f"first hit logged; {NOT_VERIFIED}"
        reason = f"a first-hit line alone may be quoted text: {NOT_VERIFIED}"
    else:
        reason = _no_hit(counted, require_hits=require_hits)
    return replace(_check(name, question, status, reason, seen, places), expected=_EXPECTED)


def _no_hit(counted: KernelTally, *, require_hits: bool) -> str:
    seen = _without_hit(counted)
    if not seen:
        return "no counted call and no refused call" if require_hits else "no request served yet"
    reasons = [reason for reason, calls in counted.fallbacks if calls]
    if reasons and all(is_call_reason(reason) for reason in reasons):
        return f"no matching request was served{'' if require_hits else ' yet'}; {seen}"
    return f"no counted call{'' if require_hits else ' yet'}; {seen}"


def is_call_reason(reason: str) -> bool:
    """Whether a fall-back came of the call (its tokens, context, sequences), not of the layer."""
    return reason.startswith(_CALL_REASONS)


def _without_hit(counted: KernelTally) -> str:
    parts = [f"{calls} fell back: {reason}" for reason, calls in counted.fallbacks[:4]]
    if counted.captured:
        parts.append(f"{counted.captured} captured in a graph, which alone is no hit")
    if counted.faults:
        parts.append(f"{counted.faults} faults")
    return "; ".join(parts)


def _faults(evidence: Evidence) -> Iterator[Check]:
    marks = [mark for mark in evidence.marks if mark.kind == "fault"]
    counted = sum(count.calls for count in evidence.counts if count.outcome == "fault")
    if marks or counted:
        first = marks[0].fields.get("error", "") if marks else _first_fault(evidence)
        reason = f"{counted or len(marks)} faults, the first: {first or 'no text'}"
        question = "Did the plugin's own code raise? (vLLM's path served those calls)"
        places = tuple(mark.place for mark in marks[:3])
        yield _check("faults", question, "failed", reason, reason, places)


def _first_fault(evidence: Evidence) -> str:
    return next((c.reason for c in evidence.counts if c.outcome == "fault" and c.calls), "")


def _baseline(evidence: Evidence) -> Check:
    question = "Did the baseline run nothing of hwtune's?"
    hits = [item for item in tallies(evidence) if item.hits or item.captured or item.replayed]
    if hits:
        calls = hits[0].hits + hits[0].captured + hits[0].replayed
        reason = f"{hits[0].kernel} was called {calls} times in the baseline arm"
        return _check("baseline", question, "failed", reason, reason, ())
    return _check("baseline", question, "passed", "", "no kernel of hwtune's was called", ())


def _is(mark: Mark, kind: str, kernel: str) -> bool:
    return mark.kind == kind and mark.fields.get("kernel") == kernel


def _check(
    name: str, question: str, status: str, reason: str, seen: str, places: tuple[Place, ...]
) -> Check:
    return Check(
        name=name,
        question=question,
        status="passed" if status == "passed" else "failed" if status == "failed" else "skipped",
        seen=seen,
        reason=reason,
        evidence=places,
    )
