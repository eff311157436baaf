"""What differs between releases of the scheduler."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from hwtune.domain.errors import InputError
from hwtune.domain.scheduler.split import SplitRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """One row of the version table; the sources are the releases' v1/core/sched/scheduler.py."""

    since: tuple[int, int]
    newest_budgets: bool = False
    """max_num_active_seqs and the adaptive threshold exist."""
    charges_drafters: bool = False
    """A drafter's extra inputs are taken off max_num_batched_tokens."""
    long_prefill_alone: bool = True
    """long_prefill_token_threshold holds for a request that is alone, too."""
    retention: bool = False
    """prefix_cache_retention_interval is configured (0 by default), not an environment variable."""
    clears_gaps: bool = False
    """States between gaps are found when they are no longer needed; before, only the last ones."""
    resumes_before_last: bool = False
    """Cached states end before the last token of a prompt, which is always left to compute."""
    fine_hits: bool = False
    """Prefix hits may end inside a block (prefix_match_unit)."""
    junctions: bool = False
    """Ends of shared prefixes that a sparse group has not cached are noticed and kept."""
    pads_verifications: bool = False
    """A lone token admitted beside verifications is padded with drafts."""
    drops_cut_padding: bool = False
    """Align mode: padding that does not fit whole is left out."""
    watermark: bool = False
    retires_processed: bool = False
    """Blocks leave a window once the output of their step is processed, not once scheduled."""
    drafts_beside_async: bool = False
    """Async scheduling and speculation go together."""
    drafts_by_model: bool = False
    """draft_model is a method that reserves slots."""
    delivers_stale: bool = False
    """Async: what a preempted request still produces is delivered, and it waits for that."""
    uncached_first: bool = False
    """Freed blocks that are not cached are reused first, the latest first."""
    uncached_first_in_windows: bool = False
    """The same for blocks that left a window, or belong to a sliding-window group."""
    caches_reachable: bool = False
    """Of a window, only blocks that can serve a hit are cached."""
    reserves_full_isl: bool = False
    """scheduler_reserve_full_isl exists."""
    split: SplitRule | None = None
    """How align mode cuts prefills; None: there is no align mode."""
    preemption_refunds: bool = False
    """A priority victim that was scheduled already gives its tokens back to the budget."""
    admits_with_lookahead: bool = False
    """Admission reserves the drafter's slots, too."""
    common_block: bool = False
    """The scheduler's block is the least common multiple of the groups' blocks, not the first."""
    foresees_ends: bool = False
    """Async: a request whose last token is sure to be in flight is not scheduled once more."""
    waits_for_room: bool = False
    """Without chunked prefill, a request too long for the budget is waited for, not passed over."""


_V011 = Rules(since=(0, 11))
_V013 = replace(
    _V011,
    since=(0, 13),
    preemption_refunds=True,
    waits_for_room=True,
    foresees_ends=True,
)
_V018 = replace(_V013, since=(0, 18), split="whole", drafts_by_model=True, drafts_beside_async=True)
_V023 = replace(
    _V018,
    since=(0, 23),
    reserves_full_isl=True,
    admits_with_lookahead=True,
    common_block=True,
    uncached_first_in_windows=True,
    caches_reachable=True,
)
_V027 = replace(
    _V023,
    since=(0, 27),
    split="sub-block",
    watermark=True,
    pads_verifications=True,
    junctions=True,
    fine_hits=True,
    retires_processed=True,
    delivers_stale=True,
    uncached_first=True,
)
_V028 = replace(_V027, since=(0, 28), charges_drafters=True)
_V032 = replace(
    _V028,
    since=(0, 32),
    newest_budgets=True,
    long_prefill_alone=False,
    retention=True,
    drops_cut_padding=True,
    clears_gaps=True,
    resumes_before_last=True,
)
_ROWS = (_V032, _V028, _V027, _V023, _V018, _V013, _V011)
"""Newest first. Between two rows a release is played as the older one."""


def rules_for(version: str) -> Rules:
    """The row that a vLLM version falls into.

    Raises:
        InputError: not a version, or older than every row.
    """
    match = re.match(r"v?(\d+)\.(\d+)", version)
    if match is None:
        message = f"vLLM version {version!r}: expected one like 0.32.0"
        raise InputError(message)
    asked = (int(match[1]), int(match[2]))
    for row in _ROWS:
        if asked >= row.since:
            return row
    oldest = ".".join(map(str, _ROWS[-1].since))
    message = f"vLLM {version}: the scheduler is modelled from {oldest} on"
    raise InputError(message)
