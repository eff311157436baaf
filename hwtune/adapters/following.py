"""Follows logs that still grow, until there is nothing more to wait for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable

from hwtune.domain.collecting import EvidenceCollector
from hwtune.domain.file_reader import FileReader
from hwtune.io.tailing import Tail, open_tail

POLL_S = 0.2
_TALKATIVE = 6
"""A server that never falls quiet is waited for that many times longer, and then no more."""


def follow(
    names: Iterable[str],
    collector: EvidenceCollector,
    quiet_needed: Callable[[], float | None],
    *,
    timeout_s: float | None = None,
) -> str:
    """Feeds the collector until it is over; returns why it stopped, in a few words.

    Args:
        names: files, which need not exist yet, or ``-`` for standard input.
        collector: takes the lines as they come.
        quiet_needed: asked after each look; seconds without a new line that end the wait.
        timeout_s: longest wait in all, in seconds; None waits for ever.

    Raises:
        InputError: a file is no readable text.
    """
    sources = [_Source(open_tail(name), collector) for name in names]
    why = "interrupted"
    with contextlib.ExitStack() as stack:
        for source in sources:
            stack.callback(source.tail.close)
        with contextlib.suppress(KeyboardInterrupt):
            why = _wait(sources, quiet_needed, timeout_s)
        for source in sources:
            source.finish()
    return why


def wait_for(ready: Callable[[], bool], timeout_s: float | None) -> float | None:
    """Waits until something is ready or the time is over; returns what is left of it, in seconds."""
    end = None if timeout_s is None else time.monotonic() + timeout_s
    while not ready() and (end is None or time.monotonic() < end):
        time.sleep(POLL_S)
    return None if end is None else max(0.0, end - time.monotonic())


def _wait(
    sources: list[_Source], quiet_needed: Callable[[], float | None], timeout_s: float | None
) -> str:
    begun = changed = time.monotonic()
    reached: float | None = None
    while True:
        looks = [source.look() for source in sources]
        now = time.monotonic()
        changed = now if any(looks) else changed
        needed = quiet_needed()
        reached = None if needed is None else reached or now
        if needed is not None and reached is not None:
            patience_s = needed * _TALKATIVE
            if now - changed >= needed or now - reached >= patience_s:
                return "nothing more to wait for"
        if all(source.tail.ended for source in sources):
            return "the input ended"
        if timeout_s is not None and now - begun >= timeout_s:
            return f"{timeout_s:g} s are over"
        if not any(looks):
            time.sleep(POLL_S)


class _Source:
    """One log, and the reader that keeps its place in it."""

    def __init__(self, tail: Tail, collector: EvidenceCollector) -> None:
        self.tail = tail
        self._collector = collector
        self._reader: FileReader | None = None

    def look(self) -> bool:
        """Whether something new was there."""
        return self._feed(self.tail.poll(POLL_S))

    def finish(self) -> None:
        """Takes a last line that has no line end."""
        self._feed(self.tail.flush())

    def _feed(self, blocks: list[tuple[int, bytes]]) -> bool:
        if not blocks:
            return False
        if self._reader is None:
            self._reader = self._collector.open(self.tail.name)
        reader = self._reader
        self._collector.take(reader, reader.read_blocks(reader.taught(blocks)))
        return True
