"""A request inside the engine."""

from __future__ import annotations

from hwtune.domain.scheduler.blocks import Block, Key
from hwtune.domain.scheduler.values import Entry, Request, RowKind

WAITING, RUNNING, PREEMPTED, FINISHED = range(4)


class Table:
    """What one request holds of one cache group."""

    __slots__ = (
        "allocated",
        "blocks",
        "cached",
        "held",
        "partial",
        "previous_state",
        "retired",
    )

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        """By position; gaps are NULL."""
        self.held = 0
        """Blocks without the gaps."""
        self.cached = 0
        """Leading blocks that caching is done with."""
        self.partial: tuple[int, Block] | None = None
        """A block shared with others up to a point inside it: (index, block), to be copied."""
        self.allocated = False
        """Mamba: the request has a running state."""
        self.previous_state: int | None = None
        """Mamba: index of the state before the last one."""
        self.retired = 0
        """Mamba: leading blocks that are known to be gaps."""


class Live:
    """Counters of one request; names follow vLLM's Request (v1/request.py)."""

    __slots__ = (
        "arrival",
        "computed",
        "easy_until",
        "id",
        "in_flight",
        "junction",
        "known",
        "lane",
        "limit",
        "name_tokens",
        "names",
        "order",
        "owner",
        "placeholders",
        "prefilling",
        "prefix_len",
        "prefix_owner",
        "priority",
        "prompt_len",
        "proposed",
        "quiet_until",
        "stale",
        "status",
        "tables",
        "verified",
    )

    def __init__(self, request: Request, order: int, arrival: float, num_groups: int) -> None:
        self.id = request.id
        self.order = order
        """Number of the request in the run."""
        self.arrival = arrival
        self.priority = request.priority
        self.prompt_len = request.prompt_len
        self.limit = request.prompt_len + request.output_len
        """Known tokens at which the request ends."""
        self.known = request.prompt_len
        """Prompt and produced tokens (num_tokens)."""
        self.computed = 0
        self.proposed = 0
        """Drafts proposed for the next step (len(spec_token_ids))."""
        self.placeholders = 0
        """Tokens of steps in flight that are not known yet (async)."""
        self.in_flight = 0
        """Scheduled tokens whose output was not processed."""
        self.stale = 0
        """In-flight tokens from before a preemption."""
        self.status = WAITING
        self.prefilling = False
        """Whether the last step left part of the known tokens uncomputed (is_prefill_chunk)."""
        self.junction = 0
        """Where a prefix shared with others ends that a sparse group has not cached."""
        self.verified = 0
        """Verifications of drafts so far."""
        self.quiet_until = 0
        """Up to this many tokens an allocation changes nothing."""
        self.lane: Entry | None = None
        """The row while each step only adds one token (see ``ease``)."""
        self.easy_until = -1
        """The last tick of which that is known."""
        self.tables = [Table() for _ in range(num_groups)]
        self.owner: object = order
        self.prefix_owner: object = request.prefix_id
        self.names = request.prefix_names
        self.name_tokens = request.prefix_name_tokens
        shared = request.prefix_len if request.prefix_id is not None else 0
        if self.names:
            shared = len(self.names) * self.name_tokens
        self.prefix_len = min(shared, request.prompt_len)

    def ease(self, tick: int, steps: int) -> None:
        """From now on for ``steps`` ticks the request gains a token per step and nothing else.

        Its counters rest meanwhile. The row is kept relative to the tick, so one row serves all.
        """
        self.easy_until = tick + steps - 1
        self.lane = self.entry(tick, 1, 0, "running")

    def catch_up(self, tick: int) -> None:
        """Counts the tokens of the steps before ``tick`` in which the counters rested."""
        lane = self.lane
        if lane is not None:
            self.computed, self.known = lane[2] + tick, lane[6] + tick
            self.lane, self.easy_until = None, -1

    def entry(self, tick: int, tokens: int, drafts: int, kind: RowKind) -> Entry:
        """A row of the step at ``tick``, relative to it."""
        computed, known = self.computed - tick, self.known - tick
        return (self.id, tokens, computed, drafts, kind, self.prompt_len, known)

    def key(self, group: int, hash_block: int, hash_tokens: int) -> Key:
        """Under which the tokens up to the end of a hash block are cached."""
        end = (hash_block + 1) * hash_tokens
        if end > self.prefix_len:
            return (group, self.owner, hash_block)
        if self.names:
            return (group, self.names[(end - 1) // self.name_tokens], hash_block)
        return (group, self.prefix_owner, hash_block)

    def rank(self) -> tuple[int, float, str]:
        """Order of the priority policy."""
        return (self.priority, self.arrival, self.id)
