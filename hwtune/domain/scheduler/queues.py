"""The waiting requests, in the order in which they are tried."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from hwtune.domain.scheduler.live import Live


class Queue(Protocol):
    """A waiting queue (v1/core/sched/request_queue.py)."""

    def add(self, live: Live) -> None:
        """A request that arrived."""

    def put_back(self, lives: Iterable[Live]) -> None:
        """Requests that were here before, in their order: preempted or passed over."""

    def head(self) -> Live:
        """The next request to try."""

    def pop(self) -> Live:
        """Takes the next request out."""

    def remove(self, live: Live) -> None:
        """Takes a request out wherever it is."""

    def ids(self) -> tuple[str, ...]:
        """In the order of trying."""

    def __len__(self) -> int: ...


class Fcfs:
    """First come, first served; what is put back goes to the front."""

    def __init__(self) -> None:
        self._queue: deque[Live] = deque()
        self._ids: tuple[str, ...] | None = ()

    def add(self, live: Live) -> None:
        """At the end."""
        self._ids = None
        self._queue.append(live)

    def put_back(self, lives: Iterable[Live]) -> None:
        """At the front, the first of them first."""
        self._ids = None
        self._queue.extendleft(reversed(list(lives)))

    def head(self) -> Live:
        """The oldest."""
        return self._queue[0]

    def pop(self) -> Live:
        """The oldest."""
        self._ids = None
        return self._queue.popleft()

    def remove(self, live: Live) -> None:
        """Wherever it is."""
        self._ids = None
        self._queue.remove(live)

    def ids(self) -> tuple[str, ...]:
        """Oldest first."""
        if self._ids is None:
            self._ids = tuple([live.id for live in self._queue])
        return self._ids

    def __len__(self) -> int:
        return len(self._queue)


class ByPriority:
    """Lowest priority value first, then arrival, then id."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, float, str], Live]] = []

    def add(self, live: Live) -> None:
        """By its rank."""
        heapq.heappush(self._heap, (live.rank(), live))

    def put_back(self, lives: Iterable[Live]) -> None:
        """By their ranks: there is no front."""
        for live in lives:
            self.add(live)

    def head(self) -> Live:
        """The lowest rank."""
        return self._heap[0][1]

    def pop(self) -> Live:
        """The lowest rank."""
        return heapq.heappop(self._heap)[1]

    def remove(self, live: Live) -> None:
        """Wherever it is."""
        self._heap = [entry for entry in self._heap if entry[1] is not live]
        heapq.heapify(self._heap)

    def ids(self) -> tuple[str, ...]:
        """Lowest rank first."""
        return tuple([live.id for _, live in sorted(self._heap, key=lambda entry: entry[0])])

    def __len__(self) -> int:
        return len(self._heap)
