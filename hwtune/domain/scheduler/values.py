"""What the scheduler is told, and what each of its steps did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

GroupKind = Literal["full", "sliding_window", "mamba"]
MambaMode = Literal["none", "align"]
Policy = Literal["fcfs", "priority"]
RowKind = Literal["new", "running", "resumed"]
Status = Literal["ok", "stuck"]

Entry = tuple[str, int, int, int, RowKind, int, int]
"""A scheduled row before it is named: the fields of :class:`ScheduledRow` in their order."""

NEWEST_VERSION = "0.32.0"
"""The release that everything is checked against step by step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Speculative decoding, with the drafts and acceptances that a workload assumes."""

    num_tokens: int
    """K: drafts per request and step (num_speculative_tokens)."""
    method: str
    """ngram, mtp, eagle, eagle3, draft_model …: it decides lookahead slots and dropped blocks."""
    accepted: tuple[int, ...] = (0,)
    """Accepted drafts of consecutive verifications, repeated; request i starts at its entry i."""
    drafted: tuple[int, ...] | None = None
    """Proposed drafts of consecutive verifications, repeated likewise; None: always K."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The knobs that reach the scheduler, named after vLLM's (config/scheduler.py)."""

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    vllm_version: str = NEWEST_VERSION
    """Its row of the version table decides how the scheduler behaves."""
    max_num_scheduled_tokens: int | None = None
    """None: max_num_batched_tokens."""
    max_num_active_seqs: int | None = None
    """None: max_num_seqs."""
    chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    long_prefill_adaptive: bool = False
    policy: Policy = "fcfs"
    reserve_full_isl: bool = True
    """Admit only requests whose whole known sequence fits in the free blocks."""
    watermark: float = 0.0
    """Share of all blocks that admission leaves free."""
    prefix_caching: bool = False
    retention_tokens: int | None = 0
    """prefix_cache_retention_interval: 0 keeps replay boundaries only, None every block."""
    speculation: Speculation | None = None
    async_scheduling: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGroup:
    """One KV-cache group; all groups of a scenario share one pool of blocks."""

    kind: GroupKind
    block_size_tokens: int
    window_tokens: int | None = None
    """Of a sliding-window group."""
    mode: MambaMode | None = None
    """Of a mamba group: mamba_cache_mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, as the scheduler sees it."""

    id: str
    prompt_len: int
    """Tokens."""
    output_len: int
    """Tokens it produces at most; max_model_len may end it earlier."""
    arrival_step: int = 0
    """The first step that can schedule it."""
    priority: int = 0
    """Lower is earlier; only the policy ``priority`` reads it."""
    prefix_id: str | None = None
    """Requests with the same id begin with the same tokens."""
    prefix_len: int = 0
    """How many of its first tokens it takes from that prefix."""
    prefix_names: tuple[str, ...] = ()
    """Instead of ``prefix_id``: names of the consecutive parts of its prompt. A name stands for its
    part and everything before it, so requests share as many tokens as names from the start."""
    prefix_name_tokens: int = 0
    """Tokens per name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A whole run: configuration, pool and requests."""

    config: SchedulerConfig
    num_blocks: int
    """Blocks of the pool, the null block (which nobody gets) included."""
    groups: tuple[CacheGroup, ...]
    requests: tuple[Request, ...] = ()
    prefix_match_tokens: int | None = None
    """prefix_match_unit: the hash block size when it is finer than the groups' blocks."""
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRow:
    """One request's part of a step."""

    id: str
    tokens: int
    """Scheduled in this step, drafts included (q of the attention call)."""
    computed: int
    """Tokens whose KV existed before the step."""
    drafts: int
    """Of the scheduled tokens, those that are unverified drafts."""
    kind: RowKind
    prompt_len: int
    known: int
    """Prompt and produced tokens when the step was scheduled."""

    @property
    def prefilling(self) -> bool:
        """Whether the row still computes its prompt (computed < prompt_len)."""
        return self.computed < self.prompt_len


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step: what was scheduled, and the state right after scheduling it."""

    index: int
    """Number of the step; steps in which nobody is in the engine are not played, so it can jump."""
    entries: tuple[Entry, ...] = field(repr=False)
    """The rows, unnamed; ``shift`` has still to be added to computed and known."""
    shift: int = 0
    """Tokens that every row has gained since ``entries`` was taken (see :class:`Stretch`)."""
    total: int
    """Scheduled tokens."""
    budget_left: int
    """max_num_scheduled_tokens (or max_num_batched_tokens) minus ``total``."""
    preempted: tuple[str, ...]
    """In the order in which they lost their blocks."""
    running: tuple[str, ...]
    waiting: tuple[str, ...]
    """In the order of the queue."""
    blocks: Mapping[str, tuple[int, ...]]
    """Length of the block table per group of every running request, gaps included."""
    held: Mapping[str, tuple[int, ...]]
    """Blocks really held, per group."""
    free: int
    """Free blocks after scheduling (cached ones that nobody uses count as free)."""
    free_after: int
    """Free blocks once the step's output was processed; with async scheduling that is after the
    next step was scheduled."""
    out: Mapping[str, int]
    """Tokens that each request produced."""
    finished: tuple[str, ...]
    """Requests that the step's output ended."""

    @property
    def shifted(self) -> tuple[Entry, ...]:
        """The entries with ``shift`` added. Built on each access."""
        shift = self.shift
        if not shift:
            return self.entries
        return tuple(
            [
                (name, tokens, computed + shift, drafts, kind, prompt_len, known + shift)
                for name, tokens, computed, drafts, kind, prompt_len, known in self.entries
            ]
        )

    @property
    def rows(self) -> tuple[ScheduledRow, ...]:
        """The scheduled rows in scheduling order. Built on each access."""
        return tuple(
            [
                ScheduledRow(
                    id=name,
                    tokens=tokens,
                    computed=computed,
                    drafts=drafts,
                    kind=kind,
                    prompt_len=prompt_len,
                    known=known,
                )
                for name, tokens, computed, drafts, kind, prompt_len, known in self.shifted
            ]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Consecutive steps that differ in nothing but ``index`` and ``shift``.

    A stretch of more than one step is pure decoding: every row has one token and no draft, so its
    class is the same in every step and each row's computed count grows by one per step.
    """

    first: Step
    count: int

    def steps(self) -> Iterator[Step]:
        """Every step of the stretch."""
        yield self.first
        for offset in range(1, self.count):
            yield replace(
                self.first, index=self.first.index + offset, shift=self.first.shift + offset
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Why a run cannot go on."""

    waiting: tuple[str, ...]
    """Requests that will never be scheduled."""
    reason: str
    """One line: what blocks the first of them and what would help."""
