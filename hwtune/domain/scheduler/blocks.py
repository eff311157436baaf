"""The pool of KV-cache blocks: who is free, in which order they are reused, what is cached."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

Key = tuple[int, object, int]
"""(group, owner, hash block): the tokens up to the end of that hash block, as one group caches
them. The owner is a shared prefix or a request; a chain of hashes says no more than that."""


class Block:
    """One block of the pool."""

    __slots__ = ("key", "more", "refs", "tokens")

    def __init__(self) -> None:
        self.refs = 0
        """Requests that hold it."""
        self.key: Key | None = None
        """Under which it is cached."""
        self.tokens = 0
        """Tokens up to its end, when it is cached."""
        self.more: set[Key] | None = None
        """Further keys, of boundaries inside the block."""


NULL = Block()
"""Fills the gaps of block tables; it is never taken, given back or cached."""


class Pool:
    """Free blocks in the order of their reuse, and the cache over them.

    Blocks that are freed without a key are reused first, the latest first; then come blocks never
    used; cached ones come last, the longest unused first (v1/core/block_pool.py).
    """

    def __init__(self, num_blocks: int, *, uncached_first: bool = True) -> None:
        self.num_blocks = num_blocks
        self.free = num_blocks - 1
        self._uncached_first = uncached_first
        self._front: list[Block] = []
        self._fresh = num_blocks - 1
        self._back: OrderedDict[Block, None] = OrderedDict()
        self._cache: dict[Key, Block | dict[Block, None]] = {}

    def take(self, count: int) -> list[Block]:
        """``count`` free blocks; the caller has made sure that there are as many."""
        self.free -= count
        taken = [self._pop() for _ in range(count)]
        for block in taken:
            block.refs = 1
        return taken

    def _pop(self) -> Block:
        if self._front:
            return self._front.pop()
        if self._fresh:
            self._fresh -= 1
            return Block()
        block, _ = self._back.popitem(last=False)
        self.forget(block)
        return block

    def give(self, blocks: Iterable[Block], *, uncached_first: bool = False) -> None:
        """One holder less for each block; the first one without any is reused first."""
        uncached_first = uncached_first or self._uncached_first
        uncached = []
        for block in blocks:
            if block is NULL:
                continue
            block.refs -= 1
            if block.refs:
                continue
            self.free += 1
            if block.key is None and uncached_first:
                uncached.append(block)
            else:
                self._back[block] = None
        uncached.reverse()
        self._front += uncached

    def hold(self, blocks: Iterable[Block]) -> None:
        """One holder more for each block."""
        for block in blocks:
            if block is NULL:
                continue
            if not block.refs:
                del self._back[block]
                self.free -= 1
            block.refs += 1

    def find(self, key: Key) -> Block | None:
        """The block that was cached first under the key."""
        found = self._cache.get(key)
        return next(iter(found)) if isinstance(found, dict) else found

    def cached_as(self, block: Block, key: Key) -> bool:
        """Whether the key leads to this very block."""
        found = self._cache.get(key)
        return block in found if isinstance(found, dict) else found is block

    def put(self, block: Block, key: Key, tokens: int) -> None:
        """Caches a block, under one more key if it has one already."""
        if block.key == key or self.cached_as(block, key):
            return
        if block.key is None:
            block.key, block.tokens = key, tokens
        else:
            block.more = block.more or set()
            block.more.add(key)
        found = self._cache.get(key)
        if found is None:
            self._cache[key] = block
        elif isinstance(found, dict):
            found[block] = None
        else:
            self._cache[key] = {found: None, block: None}

    def forget(self, block: Block) -> list[Key]:
        """Takes a block out of the cache; returns its keys, the first one first."""
        if block.key is None:
            return []
        keys = [block.key, *(block.more or ())]
        for key in keys:
            found = self._cache.get(key)
            if found is block:
                del self._cache[key]
            elif isinstance(found, dict):
                found.pop(block, None)
                if not found:
                    del self._cache[key]
        block.key, block.more, block.tokens = None, None, 0
        return keys

    def move_keys(self, source: Block, target: Block) -> None:
        """Caches ``target`` under everything that led to ``source``."""
        tokens = source.tokens
        for key in self.forget(source):
            self.put(target, key, tokens)


class CountingPool(Pool):
    """The pool without prefix caching: blocks have no identity, so one stands for all."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._any = Block()

    def take(self, count: int) -> list[Block]:
        """As many stand-ins."""
        self.free -= count
        return [self._any] * count

    def give(self, blocks: Iterable[Block], *, uncached_first: bool = False) -> None:
        """Counts what comes back."""
        self.free += sum(block is not NULL for block in blocks)


def unheld(blocks: Sequence[Block]) -> int:
    """How many of the blocks nobody holds, so that holding them takes them from the free ones."""
    return sum(block is not NULL and not block.refs for block in blocks)
