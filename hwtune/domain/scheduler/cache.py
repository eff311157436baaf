"""The KV cache as the scheduler uses it: look a prefix up, take blocks, give them back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hwtune.domain.scheduler.blocks import Block, CountingPool, Pool
from hwtune.domain.scheduler.groups import BlocksPerGroup, Caching, Group, blocks_for
from hwtune.domain.scheduler.live import PREEMPTED, WAITING, Live
from hwtune.domain.scheduler.mamba import AlignedStateGroup, StateGroup
from hwtune.domain.scheduler.setup import Setup
from hwtune.domain.scheduler.values import CacheGroup
from hwtune.domain.scheduler.window import WindowGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """What the cache has of a request's tokens."""

    blocks: BlocksPerGroup | None
    """Per group; None when nothing was found."""
    tokens: int
    junction: int = 0
    """Where a prefix ends that attention has and a sparse group has not; 0: nowhere."""


MISS = Hit(blocks=None, tokens=0)


@dataclass(slots=True, kw_only=True)
class _Kind:
    """Groups of the same kind and size; a hit counts only if all of them have it."""

    spec: CacheGroup
    ids: list[int]


class Cache:
    """All groups over one pool (KVCacheManager and its coordinator)."""

    def __init__(self, setup: Setup) -> None:
        config = setup.config
        self.max_model_len = config.max_model_len
        self.lookahead = setup.lookahead
        self.enabled = config.prefix_caching
        self.watermark = int(config.watermark * setup.num_blocks)
        self.pool: Pool = (
            Pool(setup.num_blocks, uncached_first=setup.rules.uncached_first)
            if self.enabled
            else CountingPool(setup.num_blocks)
        )
        self._admission_lookahead = setup.lookahead if setup.rules.admits_with_lookahead else 0
        self.fine = setup.fine
        self._caching = Caching(
            enabled=self.enabled,
            hash_tokens=setup.hash_block,
            hit_tokens=setup.hash_block if setup.fine else setup.scheduler_block,
            scheduler_block=setup.scheduler_block,
            retention=setup.retention,
            drop_last=setup.drops_last,
            reachable_only=setup.rules.caches_reachable,
            windows_first=setup.rules.uncached_first_in_windows,
            retires_processed=setup.rules.retires_processed,
            clears_gaps=setup.rules.clears_gaps,
            before_last=setup.rules.resumes_before_last,
        )
        self.groups = [self._group(index, spec, setup) for index, spec in enumerate(setup.groups)]
        self._kinds = _kinds(setup.groups)
        self._states = [group for group in self.groups if isinstance(group, StateGroup)]

    def _group(self, index: int, spec: CacheGroup, setup: Setup) -> Group:
        size, pool, caching = spec.block_size_tokens, self.pool, self._caching
        if spec.kind == "full":
            return Group(index, size, pool, caching)
        if spec.kind == "mamba":
            kind = AlignedStateGroup if spec.mode == "align" else StateGroup
            return kind(index, size, pool, caching, setup.num_drafts)
        window = spec.window_tokens or self.max_model_len
        cap = blocks_for(min(window - 1 + setup.max_in_flight, self.max_model_len), size) + 1
        return WindowGroup(index, size, pool, caching, window, cap)

    # --- prefixes ---------------------------------------------------------------------------

    def lookup(self, live: Live) -> Hit:
        """The longest cached prefix; the last token is always left to compute."""
        if not self.enabled:
            return MISS
        if len(self.groups) == 1:
            blocks, tokens = self.groups[0].longest_hit(
                live, (0,), live.known - 1, self._caching.drop_last
            )
            return Hit(blocks=blocks if blocks[0] else None, tokens=tokens)
        return self._reconciled(live)

    def _reconciled(self, live: Live) -> Hit:
        """The longest prefix that all groups have, found by shrinking it until all agree."""
        found: list[list[Block] | None] = [None] * len(self.groups)
        hit, longest = live.known - 1, 0
        settled: set[int] = set()
        lengths: dict[int, int] = {}
        simple = len(self._kinds) == 2 and self._kinds[0].spec.kind == "full"
        while True:
            current = hit
            for number, kind in enumerate(self._kinds):
                if number in lengths and kind.spec.kind == "full":
                    current = min(current, lengths[number])
                    continue
                drop = self._caching.drop_last and number not in settled
                limit = self._with_margin(live, kind.spec, current) if drop else current
                blocks, length = self.groups[kind.ids[0]].longest_hit(live, kind.ids, limit, drop)
                if drop:
                    settled.add(number)
                elif length < current:
                    settled.clear()
                current = lengths[number] = length
                for group, column in zip(kind.ids, blocks, strict=True):
                    found[group] = column
                longest = max(longest, current)
            if current >= hit:
                break
            hit = current
            if simple:
                break
        columns = self._cut(found, hit)
        uncached = longest - hit
        return Hit(
            blocks=columns if any(columns) else None,
            tokens=hit,
            junction=hit + uncached if uncached else 0,
        )

    def _with_margin(self, live: Live, spec: CacheGroup, current: int) -> int:
        """Attention matches one unit more and then drops it."""
        if spec.kind == "mamba":
            return current
        unit = self._caching.hash_tokens
        fine = self.fine and spec.kind == "full" and spec.block_size_tokens > unit
        margin = unit if fine else spec.block_size_tokens
        return min(current + margin, live.known // unit * unit)

    def _cut(self, found: Sequence[list[Block] | None], hit: int) -> BlocksPerGroup:
        columns: BlocksPerGroup = []
        for group, column in zip(self.groups, found, strict=True):
            column = column or []
            if type(group) is Group:
                del column[blocks_for(hit, group.block) :]
            columns.append(column)
        return columns

    # --- blocks -----------------------------------------------------------------------------

    def allocate(self, live: Live, tokens: int) -> bool:
        """Room for ``tokens`` more tokens of a running request; False if the pool has none."""
        return self._allocate(live, tokens, MISS, live.computed, 0, self.lookahead)

    def admit(self, live: Live, tokens: int, hit: Hit, *, whole: bool, others: bool) -> bool:
        """The same for a waiting request, which may bring cached blocks.

        Args:
            whole: whether the whole known sequence must fit, not only this step's part.
            others: whether anything runs, so that the watermark applies.
        """
        computed = live.computed + hit.tokens
        margin = self.watermark if others and live.status in (WAITING, PREEMPTED) else 0
        if whole:
            known = min(live.known, self.max_model_len)
            needed = self._needed(live, hit, known, known, computed, admit=True)
            if needed + margin > self.pool.free:
                return False
        return self._allocate(live, tokens, hit, computed, margin, self._admission_lookahead)

    def needed(self, live: Live, tokens: int) -> int:
        """Free blocks that admission wants for the first ``tokens`` tokens, without any hit."""
        return self._needed(live, MISS, tokens, tokens, 0, admit=True)

    def _needed(
        self, live: Live, hit: Hit, tokens: int, main: int, computed: int, *, admit: bool
    ) -> int:
        needed = 0
        for group in self.groups:
            hits = hit.blocks[group.index] if hit.blocks else ()
            needed += group.needed(live, hits, tokens, main, computed, admit=admit)
        return needed

    def _allocate(
        self, live: Live, tokens: int, hit: Hit, computed: int, margin: int, lookahead: int
    ) -> bool:
        main = min(computed, self.max_model_len) + tokens
        slots = min(main + lookahead, self.max_model_len)
        in_flight = live.in_flight if self._caching.retires_processed else 0
        processed = max(0, min(computed, self.max_model_len) - in_flight)
        groups = self.groups
        for group in groups:
            group.retire(live, processed)
        if self._needed(live, hit, slots, main, computed, admit=False) + margin > self.pool.free:
            return False
        if hit.blocks:
            for group in groups:
                group.adopt(live, hit.blocks[group.index], computed)
        for group in groups:
            group.extend(live, slots, main)
        if self.enabled:
            self.store(live, min(main, live.known))
        quiet = main >= live.known
        live.quiet_until = min([g.quiet_until(live) for g in groups]) if quiet else 0
        return True

    def store(self, live: Live, tokens: int) -> None:
        """Caches what the first ``tokens`` tokens filled."""
        if not self.enabled:
            return
        boundaries = self._replay_boundaries(live.prompt_len)
        for group in self.groups:
            group.store(live, self._cacheable(tokens, group), boundaries)

    def _replay_boundaries(self, prompt_len: int) -> tuple[int, ...]:
        """Where a request with the same prompt, or one that continues it, can resume."""
        if not self._caching.drop_last:
            return (prompt_len - 1,)
        block = self._caching.scheduler_block
        ends = {(prompt_len - 1) // block * block, prompt_len // block * block}
        return tuple(sorted({max(end - block, 0) for end in ends}))

    def _cacheable(self, tokens: int, group: Group) -> int:
        """The part that a hit can ever end in."""
        if len(self.groups) == 1 or self.fine:
            return tokens
        block = self._caching.scheduler_block
        aligned = tokens // block * block
        if self._caching.drop_last and aligned > 0:
            return min(tokens, aligned + group.block)
        return aligned

    def release(self, live: Live) -> None:
        """Gives all blocks of a request back."""
        for group in self.groups:
            group.release(live)
        live.quiet_until = 0

    def begin_step(self) -> None:
        """States cached in the last step exist from now on."""
        for group in self._states:
            group.cached_now.clear()

    def end_scheduling(self) -> None:
        """The copies of this step are under way; their extra holds end."""
        copies = [block for group in self.groups for block in group.copies]
        if copies:
            for group in self.groups:
                group.copies.clear()
            self.pool.give(copies)


def _kinds(specs: Sequence[CacheGroup]) -> list[_Kind]:
    """Full attention first: its hit bounds the search in the others."""
    kinds: list[_Kind] = []
    for index, spec in enumerate(specs):
        same = next((kind for kind in kinds if kind.spec == spec), None)
        if same is None:
            kinds.append(_Kind(spec=spec, ids=[index]))
        else:
            same.ids.append(index)
    return sorted(kinds, key=lambda kind: kind.spec.kind != "full")
