"""Sliding-window groups: blocks leave with the window, and a hit needs one window of them."""

from __future__ import annotations

from collections.abc import Sequence

from hwtune.domain.scheduler.blocks import NULL, Pool
from hwtune.domain.scheduler.groups import BlocksPerGroup, Caching, Group, blocks_for
from hwtune.domain.scheduler.live import Live, Table


class WindowGroup(Group):
    """Sliding-window attention (SlidingWindowManager)."""

    def __init__(
        self, index: int, block: int, pool: Pool, caching: Caching, window: int, cap: int | None
    ) -> None:
        super().__init__(index, block, pool, caching)
        self.window = window
        self.cap = cap

    def skipped(self, tokens: int) -> int:
        """Tokens in front of the window of the next token."""
        return max(0, tokens - self.window + 1)

    def release(self, live: Live) -> None:
        """Gives everything back, the tail to be reused first."""
        table = live.tables[self.index]
        live.tables[self.index] = Table()
        self.pool.give(reversed(table.blocks), uncached_first=self.caching.windows_first)

    def quiet_until(self, live: Live) -> int:
        """Until the block table grows, or the window leaves the first block."""
        table = live.tables[self.index]
        first = len(table.blocks) - table.held
        return min(super().quiet_until(live), (first + 1) * self.block + self.window - 1)

    def _run(self, drop: bool) -> int:
        """Consecutive cached blocks that a hit needs."""
        return blocks_for(self.window - 1, self.block) + drop

    def worth_keeping(
        self, start: int, end: int, boundaries: Sequence[int]
    ) -> Sequence[bool] | None:
        """The tails in front of the boundaries at which a hit can end."""
        caching = self.caching
        align = caching.hit_tokens
        if align % self.block or not caching.reachable_only:
            return None
        drop = caching.drop_last
        need = self._run(drop)
        keep = [False] * (end - start)
        segment = align if caching.retention is None else caching.retention
        if segment:
            per_segment = segment // self.block
            if need >= per_segment:
                return None
            for i in range(max(start, int(drop)), end):
                keep[i - start] = (i - drop) % per_segment >= per_segment - need
        if caching.retention is not None:
            for boundary in boundaries:
                last = boundary // align * align // self.block + drop
                for i in range(max(start, last - need), min(end, last)):
                    keep[i - start] = True
        return keep

    def store(self, live: Live, tokens: int, boundaries: Sequence[int]) -> None:
        """Caches full blocks only: a window is never resumed inside one."""
        self._store_full(live, tokens, boundaries)

    def longest_hit(
        self, live: Live, groups: Sequence[int], longest: int, drop: bool
    ) -> tuple[BlocksPerGroup, int]:
        """Searches from the right for one window of cached blocks; the rest are gaps."""
        align, size, need = self.caching.hit_tokens, self.block, self._run(drop)
        count = longest // size
        found: BlocksPerGroup = [[NULL] * count for _ in groups]
        run = end = 0
        for i in range(count - 1, -1, -1):
            blocks = self.find_block(live, groups, i)
            if blocks is None:
                run = 0
                continue
            if run == 0 and size != align and (i + 1 - drop) * size % align:
                continue
            for column, block in zip(found, blocks, strict=True):
                column[i] = block
            run += 1
            if run >= need:
                end = i + run
                break
        else:
            # What is left of a run at the very start is a hit however short it is.
            end = self._aligned(run)
        if drop and end:
            end = self._aligned(end - 1)
        for column in found:
            del column[end:]
        return found, end * size

    def _aligned(self, count: int) -> int:
        """At most ``count`` blocks that end where a hit may end."""
        while (
            self.block != self.caching.hit_tokens and count * self.block % self.caching.hit_tokens
        ):
            count -= 1
        return count
