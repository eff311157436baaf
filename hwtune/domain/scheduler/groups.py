"""The cache groups: how many blocks a request needs of each kind, and which ones are cached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hwtune.domain.scheduler.blocks import NULL, Block, Key, Pool, unheld
from hwtune.domain.scheduler.live import Live, Table

BlocksPerGroup = list[list[Block]]


def blocks_for(tokens: int, block: int) -> int:
    """Blocks that hold ``tokens``."""
    return -(-tokens // block)


@dataclass(slots=True, kw_only=True)
class Caching:
    """Granularities of prefix caching, one for the whole run."""

    enabled: bool
    hash_tokens: int
    """Tokens per hash."""
    hit_tokens: int
    """Hits end at multiples of it."""
    scheduler_block: int
    retention: int | None
    """prefix_cache_retention_interval."""
    drop_last: bool
    """EAGLE and MTP recompute the last matched block."""
    reachable_only: bool
    """Window blocks that can never serve a hit stay out of the cache (0.23)."""
    windows_first: bool
    """What leaves a window uncached is reused first (0.23)."""
    retires_processed: bool
    """Blocks are given back only once the output of their step is processed (0.27)."""
    clears_gaps: bool
    """States between gaps are given back, too (0.32)."""
    before_last: bool
    """Boundaries leave the prompt's last token to compute (0.32)."""


class Group:
    """Full attention: every block is kept until the request ends."""

    def __init__(self, index: int, block: int, pool: Pool, caching: Caching) -> None:
        self.index = index
        self.block = block
        self.pool = pool
        self.caching = caching
        self.hashes_per_block = max(block // caching.hash_tokens, 1)
        self.cap: int | None = None
        """Most blocks that admission reserves for one request."""
        self.copies: list[Block] = []
        """Both ends of the copies of this step; each is held once more until it is scheduled."""

    def skipped(self, tokens: int) -> int:
        """Tokens that no later token attends to, when ``tokens`` are computed."""
        return 0

    # --- room -------------------------------------------------------------------------------

    def needed(
        self, live: Live, hits: Sequence[Block], tokens: int, main: int, local: int, *, admit: bool
    ) -> int:
        """Free blocks that it takes to hold ``tokens`` tokens of a request.

        Args:
            hits: cached blocks about to be adopted.
            tokens: slots wanted, lookahead included.
            main: the same without lookahead.
            local: computed tokens, hits included.
            admit: whether this asks for the whole sequence before admission.
        """
        table = live.tables[self.index]
        required = blocks_for(tokens, self.block)
        if admit and self.cap is not None:
            required = min(required, self.cap)
        have = len(table.blocks)
        gone = self.skipped(local) // self.block
        new = max(required - max(gone, len(hits) + have), 0)
        if hits and local % self.block:
            new += 1
        return new + unheld(hits[max(0, gone - have) :])

    def adopt(self, live: Live, hits: Sequence[Block], local: int) -> None:
        """Gives the request its cached blocks."""
        table = live.tables[self.index]
        gone = self.skipped(local) // self.block
        kept = hits[gone:] if gone > 0 else hits
        self.pool.hold(kept)
        table.blocks += [NULL] * max(gone, 0)
        table.blocks += kept
        table.held += sum(block is not NULL for block in kept)
        table.cached = len(table.blocks)
        if kept and local % self.block:
            index = local // self.block
            table.partial = (index, kept[-1])
            table.cached = index

    def extend(self, live: Live, tokens: int, main: int) -> None:
        """Takes the blocks that ``tokens`` tokens need, and a copy of a block shared in part."""
        table = live.tables[self.index]
        if table.partial is not None:
            index, source = table.partial
            table.partial = None
            self.copy_on_write(table, index, source, self.pool.take(1)[0])
        new = blocks_for(tokens, self.block) - len(table.blocks)
        if new > 0:
            table.blocks += self.pool.take(new)
            table.held += new

    def copy_on_write(self, table: Table, index: int, source: Block, copy: Block) -> None:
        """Puts a private copy in place of a shared block."""
        table.blocks[index] = copy
        copy.refs += 1
        self.copies += (source, copy)

    def retire(self, live: Live, processed: int) -> None:
        """Gives back blocks that no later token attends to."""
        skipped = self.skipped(processed)
        if skipped > 0:
            table = live.tables[self.index]
            self._clear(table, min(skipped // self.block, len(table.blocks)))

    def _clear(self, table: Table, end: int) -> None:
        freed = []
        for index in range(end - 1, -1, -1):
            if table.blocks[index] is NULL:
                break
            freed.append(table.blocks[index])
            table.blocks[index] = NULL
        if freed:
            table.held -= len(freed)
            self.pool.give(freed, uncached_first=self.caching.windows_first)

    def release(self, live: Live) -> None:
        """Gives everything back, the tail to be reused first."""
        table = live.tables[self.index]
        live.tables[self.index] = Table()
        self.pool.give(reversed(table.blocks))

    def quiet_until(self, live: Live) -> int:
        """Up to how many tokens an allocation for the request changes nothing here."""
        table = live.tables[self.index]
        if table.partial is not None:
            return 0
        room = len(table.blocks) * self.block
        if self.caching.enabled:
            room = min(room, (table.cached + 1) * self.block - 1)
        return room

    # --- cache ------------------------------------------------------------------------------

    def key(self, live: Live, block: int) -> Key:
        """Of a full block."""
        last = (block + 1) * self.hashes_per_block - 1
        return live.key(self.index, last, self.caching.hash_tokens)

    def worth_keeping(
        self, start: int, end: int, boundaries: Sequence[int]
    ) -> Sequence[bool] | None:
        """Which full blocks of a range can ever serve a hit; None: all."""
        return None

    def store(self, live: Live, tokens: int, boundaries: Sequence[int]) -> None:
        """Caches what the first ``tokens`` tokens filled."""
        self._store_full(live, tokens, boundaries)
        if self.block != self.caching.hash_tokens:
            self._store_tail(live, tokens)

    def _store_full(self, live: Live, tokens: int, boundaries: Sequence[int]) -> list[Key]:
        table = live.tables[self.index]
        start, end = table.cached, tokens // self.block
        if start >= end:
            return []
        ends = [*boundaries, live.junction] if live.junction else boundaries
        keep = self.worth_keeping(start, end, ends)
        stored = []
        for index in range(start, end):
            block = table.blocks[index]
            if block is NULL or (keep is not None and not keep[index - start]):
                continue
            if block.key is not None:
                self.pool.forget(block)
            key = self.key(live, index)
            self.pool.put(block, key, (index + 1) * self.block)
            stored.append(key)
        table.cached = end
        return stored

    def _store_tail(self, live: Live, tokens: int) -> None:
        """Caches the last hash boundary of the prompt when it lies inside a block."""
        unit = self.caching.hash_tokens
        resend = self.caching.before_last and not self.caching.drop_last
        limit = live.prompt_len - resend
        boundary = limit // unit * unit
        blocks = live.tables[self.index].blocks
        index = boundary // self.block
        if boundary == 0 or boundary > tokens or boundary % self.block == 0 or index >= len(blocks):
            return
        self.store_partial(live, blocks[index], boundary)

    def store_partial(self, live: Live, block: Block, tokens: int) -> Key | None:
        """Caches a block under a boundary inside it."""
        if block is NULL:
            return None
        unit = self.caching.hash_tokens
        key = live.key(self.index, tokens // unit - 1, unit)
        if (
            block.key not in (None, key)
            and not self.pool.cached_as(block, key)
            and block.tokens < tokens
        ):
            self.pool.forget(block)
        self.pool.put(block, key, tokens)
        return key

    # --- hits -------------------------------------------------------------------------------

    def find(self, live: Live, groups: Sequence[int], hash_block: int) -> list[Block] | None:
        """The block of each group that is cached under a boundary; None if one is missing."""
        unit = self.caching.hash_tokens
        found = []
        for group in groups:
            block = self.pool.find(live.key(group, hash_block, unit))
            if block is None:
                return None
            found.append(block)
        return found

    def find_block(self, live: Live, groups: Sequence[int], index: int) -> list[Block] | None:
        """The same for a full block."""
        return self.find(live, groups, (index + 1) * self.hashes_per_block - 1)

    def longest_hit(
        self, live: Live, groups: Sequence[int], longest: int, drop: bool
    ) -> tuple[BlocksPerGroup, int]:
        """The cached prefix of at most ``longest`` tokens: blocks per group, tokens.

        Args:
            groups: the groups of this kind, which must all have it.
            drop: whether the last matched unit is left to be recomputed.
        """
        found: BlocksPerGroup = [[] for _ in groups]
        align = self.caching.hit_tokens
        for index in range(longest // self.block):
            blocks = self.find_block(live, groups, index)
            if blocks is None:
                break
            _append(found, blocks)
        hit = len(found[0]) * self.block
        if align < self.block and self.block % align == 0:
            hit = self._inside_hit(live, groups, longest, found, hit)
        if drop and hit > 0:
            hit -= min(align, self.block)
        hit -= hit % align
        for column in found:
            del column[blocks_for(hit, self.block) :]
        return found, hit

    def _inside_hit(
        self, live: Live, groups: Sequence[int], longest: int, found: BlocksPerGroup, hit: int
    ) -> int:
        """Extends a hit into the next block, as far as a boundary inside it is cached."""
        unit = self.caching.hit_tokens
        per_block = self.block // unit
        first = len(found[0]) * per_block
        last = min(first + per_block - 1, longest // unit, live.known // unit)
        for boundary in range(last - 1, first - 1, -1):
            blocks = self.find(live, groups, boundary)
            if blocks is not None:
                _append(found, blocks)
                return (boundary + 1) * unit
        return hit


def _append(columns: BlocksPerGroup, blocks: Sequence[Block]) -> None:
    for column, block in zip(columns, blocks, strict=True):
        column.append(block)
