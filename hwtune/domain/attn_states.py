"""vllm-ascend's attention state per step and the attention calls it made, as counted by the hook.

The counters are those of the kernels, with outcomes of their own: what vllm-ascend does by itself
is no hit of hwtune's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hwtune.domain.check_records import Check, CheckStatus
from hwtune.domain.evidence import Evidence, KernelCount

STATE = "attn_state"
"""Counted as a kernel of this name; the reason is the state."""
FORWARD = "forward_impl"
"""Calls of the attention implementation, whatever operator they lead to."""

RETURNED = "returned"
"""What ``_build_attn_state`` returned: decides ``with_prefill``."""
STORED = "stored"
"""What the runner keeps for the attention code; differs with speculation other than mtp."""
CALLED = "called"
RECORDED = "recorded"
"""The call was recorded into a graph; its replays are not calls."""

OUTCOMES = (RETURNED, STORED, CALLED, RECORDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCount:
    """Calls of one operator in one state."""

    operator: str
    state: str
    called: int
    recorded: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttnStates:
    """All that was counted, summed over the workers."""

    processes: int
    """Workers that counted; each counts every step of its own."""
    returned: tuple[tuple[str, int], ...]
    """State and steps, the most frequent first."""
    stored: tuple[tuple[str, int], ...]
    calls: tuple[CallCount, ...]
    forwards: int
    """Calls of ``forward_impl``, recorded ones included."""

    @property
    def unexplained(self) -> int:
        """``forward_impl`` calls that led to none of the operators that are counted."""
        return self.forwards - sum(call.called + call.recorded for call in self.calls)


def attn_states(counts: tuple[KernelCount, ...]) -> AttnStates | None:
    """What the hook counted; None when there is no hook in this run."""
    mine = [count for count in counts if count.outcome in OUTCOMES]
    if not mine:
        return None
    operators = {(c.kernel, c.reason) for c in mine if c.kernel not in (STATE, FORWARD)}
    return AttnStates(
        processes=len({count.process for count in mine if count.kernel == STATE}),
        returned=_states(mine, RETURNED),
        stored=_states(mine, STORED),
        calls=tuple(_call(mine, operator, state) for operator, state in sorted(operators)),
        forwards=sum(count.calls for count in mine if count.kernel == FORWARD),
    )


def _states(counts: list[KernelCount], outcome: str) -> tuple[tuple[str, int], ...]:
    totals: dict[str, int] = {}
    for count in counts:
        if (count.kernel, count.outcome) == (STATE, outcome):
            totals[count.reason] = totals.get(count.reason, 0) + count.calls
    return tuple(sorted(totals.items(), key=lambda item: (-item[1], item[0])))


def _call(counts: list[KernelCount], operator: str, state: str) -> CallCount:
    def total(outcome: str) -> int:
        key = (operator, state, outcome)
        return sum(c.calls for c in counts if (c.kernel, c.reason, c.outcome) == key)

    return CallCount(operator=operator, state=state, called=total(CALLED), recorded=total(RECORDED))


def describe(states: AttnStates) -> str:
    """In one line: ``steps: DecodeOnly 10, …; calls: … in DecodeOnly 40``."""
    steps = ", ".join(f"{name} {steps}" for name, steps in states.returned) or "none"
    text = f"steps: {steps}"
    if states.stored != states.returned:
        text += f"; stored: {', '.join(f'{name} {steps}' for name, steps in states.stored)}"
    calls = [
        f"{call.operator} in {call.state} {call.called}"
        + (f" (+{call.recorded} recorded)" if call.recorded else "")
        for call in states.calls
    ]
    text += f"; calls: {', '.join(calls) or 'none of the ones that are counted'}"
    if states.unexplained:
        text += f"; {states.unexplained} calls of forward_impl took another way"
    return text


def attn_state_checks(evidence: Evidence, *, require: bool) -> Iterator[Check]:
    """Whether the counting that the plan asked for took place.

    Args:
        require: whether requests were served, so that no counted step is a failure.
    """
    plan = evidence.plan
    states = attn_states(evidence.counts)
    if states is None and (plan is None or not plan.count_attn_state):
        return
    marks = [mark for mark in evidence.marks if mark.kind == "counting"]
    counted = states is not None and sum(steps for _, steps in states.returned) > 0
    status: CheckStatus = "passed" if counted else "failed" if require else "skipped"
    reason = ""
    if not counted:
        reason = "no step was counted" if marks else "the hook is in no process"
        reason += "" if require else "; no request served yet"
    yield Check(
        name="attn_state",
        question="Which attention state had each step, and which operator was called?",
        status=status,
        expected="at least one counted step",
        seen=describe(states) if states is not None else "0 steps",
        reason=reason,
        evidence=tuple(mark.place for mark in marks[:3]),
    )
