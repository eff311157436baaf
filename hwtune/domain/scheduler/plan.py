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


@dataclass(slots=True, kw_only=True)
class Plan:
    """Budgets and picks while a step is scheduled."""

    tick: int
    budget: int
    """Tokens left of max_num_scheduled_tokens."""
    inputs: int
    """Tokens left of max_num_batched_tokens, drafters' slots included."""
    long_prefill: int
    """Most tokens for one request; 0: no limit."""
    entries: list[Entry] = field(default_factory=list)
    """The rows, relative to the tick."""
    lives: list[Live] = field(default_factory=list)
    """Whose rows they are."""
    picks: dict[int, Pick] = field(default_factory=dict)
    """Place of the row -> what is to be counted; an easy row has none."""
    preempted: list[Live] = field(default_factory=list)
    prefill_scheduled: bool = False
    """Whether a request that runs already is still in its prefill."""

    def charge(self, pick: Pick, entry: Entry, draft_slots: int) -> None:
        """Adds a pick and takes its tokens off both budgets."""
        self.picks[len(self.lives)] = pick
        self.entries.append(entry)
        self.lives.append(pick.live)
        self.budget -= pick.tokens
        self.inputs -= pick.tokens + draft_slots

    def refund(self, live: Live, draft_slots: int) -> None:
        """Takes the row of a preempted request back, if it has one."""
        if live not in self.lives:
            return
        place = self.lives.index(live)
        tokens = self.entries[place][1]
        del self.lives[place], self.entries[place]
        self.picks = {at - (at > place): pick for at, pick in self.picks.items() if at != place}
        self.budget += tokens
        self.inputs += tokens + draft_slots
