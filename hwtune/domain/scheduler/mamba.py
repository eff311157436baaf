"""Groups of recurrent state: one running state per request, and cached states in align mode."""

from __future__ import annotations

from collections.abc import Sequence

from hwtune.domain.scheduler.blocks import NULL, Block, Key, Pool, unheld
from hwtune.domain.scheduler.groups import BlocksPerGroup, Caching, Group, blocks_for
from hwtune.domain.scheduler.live import Live, Table


def last_state_position(tokens: int, unit: int, drop: bool, before_last: bool) -> int:
    """The last multiple of ``unit`` whose state a later request can resume from.

    One token is always left to compute, which only 0.32 takes into account (``before_last``);
    EAGLE's dropped unit is more than that (get_mamba_prefill_checkpoint_position).
    """
    if drop:
        return max(tokens // unit * unit - unit, 0)
    return max((tokens - before_last) // unit * unit, 0)


class StateGroup(Group):
    """Recurrent state without align mode: one block, plus one per draft (MambaManager)."""

    def __init__(self, index: int, block: int, pool: Pool, caching: Caching, extra: int) -> None:
        super().__init__(index, block, pool, caching)
        self.extra = extra
        """Blocks for the states after each draft (num_speculative_blocks)."""
        self.cached_now: set[Key] = set()
        """States cached in this step: they exist only after it, so nobody can hit them yet."""

    def skipped(self, tokens: int) -> int:
        """The state of the last token is all that is needed."""
        return tokens - 1

    def retire(self, live: Live, processed: int) -> None:
        """As for attention; before 0.27 all drafts in flight count as rejected."""
        super().retire(live, self._settled(processed))

    def _settled(self, processed: int) -> int:
        return processed if self.caching.retires_processed else max(0, processed - self.extra)

    def needed(
        self, live: Live, hits: Sequence[Block], tokens: int, main: int, local: int, *, admit: bool
    ) -> int:
        """As for attention; more than the pool has when the hit is only made in this step."""
        if hits and hits[-1].key in self.cached_now:
            return self.pool.num_blocks + 1
        tokens += self.block * self.extra
        return super().needed(live, hits, tokens, main, local, admit=admit)

    def extend(self, live: Live, tokens: int, main: int) -> None:
        """As for attention, and one block per draft."""
        super().extend(live, tokens + self.block * self.extra, main)

    def quiet_until(self, live: Live) -> int:
        """Until the table grows or a block in front of the state can go."""
        table = live.tables[self.index]
        if table.held > 1 + self.extra:
            return 0
        return super().quiet_until(live) - self.block * self.extra

    def worth_keeping(
        self, start: int, end: int, boundaries: Sequence[int]
    ) -> Sequence[bool] | None:
        """The states at which a hit can end."""
        retention, align = self.caching.retention, self.caching.hit_tokens
        if retention is None:
            return None
        keep = [False] * (end - start)
        if retention:
            per_segment = retention // self.block
            if per_segment <= 1:
                return None
            first = (start + per_segment) // per_segment * per_segment - 1
            for i in range(first, end, per_segment):
                keep[i - start] = True
        for boundary in boundaries:
            index = boundary // align * align // self.block - 1
            if start <= index < end:
                keep[index - start] = True
        return keep

    def store(self, live: Live, tokens: int, boundaries: Sequence[int]) -> None:
        """Caches the states that exist and are worth it."""
        self.cached_now.update(self._store_full(live, tokens, boundaries))

    def longest_hit(
        self, live: Live, groups: Sequence[int], longest: int, drop: bool
    ) -> tuple[BlocksPerGroup, int]:
        """The last cached state; everything in front of it is a gap."""
        unit = self.caching.hit_tokens
        inside = unit < self.block and self.block % unit == 0
        step = unit if inside else self.block
        last = longest // step
        if inside:
            last = min(last, live.known // unit)
        for i in range(last - 1, -1, -1):
            end = (i + 1) * step
            hash_block = end // self.caching.hash_tokens - 1
            blocks = self.find(live, groups, hash_block)
            if blocks is None or (not inside and end % unit):
                continue
            gap = [NULL] * ((end - 1) // self.block)
            return [[*gap, block] for block in blocks], end
        return [[] for _ in groups], 0


class AlignedStateGroup(StateGroup):
    """Align mode: states are kept at block boundaries, so that prefixes can be shared."""

    def needed(
        self, live: Live, hits: Sequence[Block], tokens: int, main: int, local: int, *, admit: bool
    ) -> int:
        """At most one new state per step, the drafts' blocks once, a copy of a shared tail."""
        if hits and hits[-1].key in self.cached_now:
            return self.pool.num_blocks + 1
        table = live.tables[self.index]
        new = blocks_for(main, self.block) + self.extra - len(hits) - len(table.blocks)
        copy = bool(hits and local % self.block) or table.partial is not None
        if copy:
            new = max(new, 0) + 1
        if new > 0:
            most = 1 + copy + (0 if table.allocated else self.extra)
            new = min(new, most) if self.caching.clears_gaps else most
        return new + unheld(hits)

    def extend(self, live: Live, tokens: int, main: int) -> None:
        """Moves on to the block of the state at ``main`` tokens; gaps fill what lies between."""
        table = live.tables[self.index]
        blocks, before = table.blocks, len(table.blocks)
        required = blocks_for(main, self.block) + self.extra
        if required <= before and table.partial is None:
            table.allocated = True
            return
        if table.allocated:
            table.previous_state = before - 1 - self.extra
        elif before:
            table.previous_state = before - 1
        state = required - self.extra - 1
        blocks += [NULL] * (state - before)
        if table.allocated:
            for index in range(before - self.extra, min(before, state)):
                blocks.append(blocks[index])
                blocks[index] = NULL
        new = self.pool.take(max(required - len(blocks), 0) + (table.partial is not None))
        table.held += len(new)
        if table.partial is not None:
            self._copy_shared_tail(table, *table.partial, new.pop(0))
            table.partial = None
        blocks += new
        table.allocated = True

    def _copy_shared_tail(self, table: Table, index: int, source: Block, copy: Block) -> None:
        table.held -= 1
        if not table.allocated:
            self.copy_on_write(table, index, source, copy)
            return
        # A running request stays on its block; the cache moves to the copy.
        self.pool.move_keys(source, copy)
        source.refs += 1
        self.copies += (source, copy)
        if copy.key is not None:
            self.cached_now.add(copy.key)

    def retire(self, live: Live, processed: int) -> None:
        """Gives back the states before the last one, a step after the last one was begun."""
        processed = self._settled(processed)
        table = live.tables[self.index]
        blocks = table.blocks
        end = min((processed - 1) // self.block, len(blocks)) if processed > 1 else 0
        if end > table.retired and self.caching.clears_gaps:
            self._clear_gaps(table, table.retired, end)
            table.retired = end
        elif end > 0 and not self.caching.clears_gaps:
            self._clear(table, end)
        previous = table.previous_state
        if previous is not None and previous < blocks_for(processed, self.block) - 1:
            block = blocks[previous]
            if block is not NULL:
                blocks[previous] = NULL
                table.held -= 1
                self.pool.give((block,))

    def _clear_gaps(self, table: Table, start: int, end: int) -> None:
        blocks = table.blocks
        freed = [blocks[i] for i in range(end - 1, start - 1, -1) if blocks[i] is not NULL]
        blocks[start:end] = [NULL] * (end - start)
        table.held -= len(freed)
        self.pool.give(freed)

    def store(self, live: Live, tokens: int, boundaries: Sequence[int]) -> None:
        """Caches full states, and the state at the prompt's last hash boundary."""
        self.cached_now.update(self._store_full(live, tokens, boundaries))
        self._store_tail(live, tokens)

    def _store_tail(self, live: Live, tokens: int) -> None:
        caching = self.caching
        unit = caching.hash_tokens
        if tokens <= 0 or tokens % unit:
            return
        newest = caching.before_last
        if not newest and tokens % self.block == 0:
            return
        drop = caching.drop_last and newest
        if tokens != last_state_position(live.prompt_len, unit, drop, newest):
            return
        table = live.tables[self.index]
        index = blocks_for(tokens, self.block) - 1
        if index >= len(table.blocks):
            return
        source = table.blocks[index]
        key = self.store_partial(live, source, tokens)
        if key is None:
            return
        self.cached_now.add(key)
        if tokens % self.block:
            table.partial = (index, source)
            table.cached = index
