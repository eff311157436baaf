"""What differs between releases of the scheduler."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hwtune.domain.errors import InputError
from hwtune.domain.scheduler.split import SplitRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """One row of the version table; the sources are the releases' v1/core/sched/scheduler.py."""

    since: tuple[int, int]
    skips_unchunkable: bool = False
    """Without chunked prefill, a request too long for the budget is passed over, not waited for."""
    preemption_refunds: bool = True
    """A priority victim that was scheduled already gives its tokens back to the budget."""
    long_prefill_alone: bool = True
    """long_prefill_token_threshold holds for a request that is alone, too."""
    reserves_full_isl: bool = True
    """scheduler_reserve_full_isl exists."""
    watermark: bool = True
    pads_verifications: bool = True
    """A lone token admitted beside verifications is padded with drafts."""
    junctions: bool = True
    """Ends of shared prefixes that a sparse group has not cached are noticed and kept."""
    split: SplitRule | None = "sub-block"
    """How align mode cuts prefills; None: there is no align mode."""
    fine_hits: bool = True
    """Prefix hits may end inside a block (prefix_match_unit)."""
    newest_budgets: bool = True
    """max_num_active_seqs, the adaptive threshold and the drafters' budget exist."""


_ROWS = (
    Rules(since=(0, 32), long_prefill_alone=False),
    Rules(since=(0, 27), newest_budgets=False),
)


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
