"""Where a prefill chunk must end so that recurrent states can be cached (align mode)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hwtune.domain.scheduler.live import Live
from hwtune.domain.scheduler.mamba import last_state_position

SplitRule = Literal["whole", "sub-block"]
"""Before 0.27 chunks are whole blocks; since then a block wider than the budget is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedSplit:
    """The rule, whichever release it is of (_mamba_block_aligned_split)."""

    block: int
    """Tokens of the state's block."""
    unit: int
    """Tokens per hash."""
    fine: bool
    """Hits may end inside a block, so the prompt's last hash boundary is a stop too."""
    drop_last: bool
    """EAGLE: the last cacheable position lies one block earlier."""
    whole_blocks: bool
    """Before 0.27: chunks are whole blocks, whatever the budget."""
    before_last: bool
    """The last cacheable position lies before the last token (0.32)."""
    largest_chunk: int
    """Most tokens that one step can give to a prefill."""

    def clip(self, live: Live, tokens: int, start: int) -> int:
        """At most ``tokens`` from position ``start``; 0 when no allowed chunk fits."""
        end = start + tokens
        prefill_end = max(live.prompt_len, live.known - 1)
        if start >= prefill_end:
            return tokens
        if self.whole_blocks:
            return self._whole(live, tokens, start)
        block = self.block
        if end < prefill_end:
            aligned = end // block * block
            if aligned > start or block <= self.largest_chunk:
                end = aligned
        inside = [stop for stop in self._stops(live, start, end) if start < stop < end]
        return max(min(inside, default=end) - start, 0)

    def _whole(self, live: Live, tokens: int, start: int) -> int:
        last = last_state_position(live.known, self.block, self.drop_last, self.before_last)
        end = start + tokens
        if end < last:
            return tokens // self.block * self.block
        return last - start if start < last < end else tokens

    def _stops(self, live: Live, start: int, end: int) -> tuple[int, int, int, int]:
        block = self.block
        last = last_state_position(live.known, block, self.drop_last, self.before_last)
        boundary = (start // block + 1) * block if start % block else 0
        drop = self.drop_last and self.before_last
        tail = (
            last_state_position(live.prompt_len, self.unit, drop, self.before_last)
            if self.fine
            else 0
        )
        junction = 0
        if start < live.junction < end:
            junction = start + (live.junction - start) // block * block
        return boundary, last, tail if last < tail < live.prompt_len else 0, junction
