"""One step in the making."""

from __future__ import annotations

from dataclasses import dataclass, field

from hwtune.domain.scheduler.live import Live
from hwtune.domain.scheduler.values import Entry, RowKind


@dataclass(slots=True, kw_only=True)
class Pick:
    """What a step gives to one request."""

    live: Live
    tokens: int
    drafts: int
    kind: RowKind
    computed: int
    """Before the step."""
    produces: bool = False
    """Whether the step samples a token for it."""

    @property
    def entry(self) -> Entry:
        """The row of the step."""
        live = self.live
        return (
            live.id,
            self.tokens,
            self.computed,
            self.drafts,
            self.kind,
            live.prompt_len,
            live.known,
        )


@dataclass(slots=True, kw_only=True)
class Plan:
    """Budgets and picks while a step is scheduled."""

    budget: int
    """Tokens left of max_num_scheduled_tokens."""
    inputs: int
    """Tokens left of max_num_batched_tokens, drafters' slots included."""
    long_prefill: int
    """Most tokens for one request; 0: no limit."""
    picks: list[Pick] = field(default_factory=list)
    preempted: list[Live] = field(default_factory=list)
    prefill_scheduled: bool = False
    """Whether a request that runs already is still in its prefill."""

    def charge(self, pick: Pick, draft_slots: int) -> None:
        """Adds a pick and takes its tokens off both budgets."""
        self.picks.append(pick)
        self.budget -= pick.tokens
        self.inputs -= pick.tokens + draft_slots

    def refund(self, live: Live, draft_slots: int) -> None:
        """Takes the pick of a preempted request back, if it has one."""
        for index, pick in enumerate(self.picks):
            if pick.live is live:
                del self.picks[index]
                self.budget += pick.tokens
                self.inputs += pick.tokens + draft_slots
                return
