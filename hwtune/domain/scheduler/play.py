"""Sends a workload to the simulated scheduler and shows every step to whoever watches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from hwtune.domain.errors import UsageError
from hwtune.domain.scheduler.progress import Progress
from hwtune.domain.scheduler.simulation import Simulation
from hwtune.domain.scheduler.values import Request, Scenario, Stall, Step, Stretch
from hwtune.domain.scheduler.workloads import Duration, WorkItem, Workload


class Watcher(Protocol):
    """Is told what happens."""

    def sent(self, item: WorkItem) -> None:
        """A request was given to the server."""
        ...

    def add(self, stretch: Stretch) -> object:
        """Steps were played."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """How a run ended."""

    steps: int
    """Steps with at least one token."""
    finished: int
    """Requests that got all their tokens."""
    preemptions: int
    stall: Stall | None
    """Why some requests will never be scheduled; None when all were served."""
    simulated_ms: float | None
    """By the duration model; None without one."""


class _Stepped:
    """Requests by the number of the step; the clock jumps over steps without anyone."""

    def __init__(self, items: Iterable[WorkItem]) -> None:
        self._left = deque(items)

    def due(self, simulation: Simulation) -> Iterator[WorkItem]:
        """Requests to send now."""
        if self._left and not simulation.busy:
            simulation.clock = max(simulation.clock, self._left[0].arrival_step)
        while self._left and self._left[0].arrival_step <= simulation.clock:
            yield self._left.popleft()

    def passed(self, step: Step) -> None:
        """A step was played."""

    @property
    def empty(self) -> bool:
        """Whether everything was sent."""
        return not self._left

    @property
    def waits(self) -> bool:
        """Whether nothing more is sent while the steps stay empty."""
        return self.empty


class _Closed(_Stepped):
    """The next request when an answer is complete; a new block only when the last one is done."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload.items)
        self._most = workload.concurrency or 1
        self._first_alone = workload.first_alone
        self._in_flight = 0
        self._block: int | None = None

    def due(self, simulation: Simulation) -> Iterator[WorkItem]:
        """Requests to send now."""
        while self._left and self._in_flight < self._most:
            if self._in_flight and self._left[0].block != self._block:
                return
            idle = self._in_flight == 0
            item = self._left.popleft()
            self._block = item.block
            self._in_flight += 1
            yield item
            if idle and self._first_alone:
                return

    def passed(self, step: Step) -> None:
        """Answers make room."""
        self._in_flight -= len(step.finished)

    @property
    def waits(self) -> bool:
        """Always: only an answer lets the next request go."""
        return True


class _Timed(_Stepped):
    """Requests by the clock that the duration model moves."""

    def __init__(self, items: Iterable[WorkItem], duration: Duration) -> None:
        super().__init__(items)
        self._duration = duration
        self.now_ms = 0.0

    def due(self, simulation: Simulation) -> Iterator[WorkItem]:
        """Requests to send now."""
        if self._left and not simulation.busy:
            self.now_ms = max(self.now_ms, self._left[0].arrival_ms)
        while self._left and self._left[0].arrival_ms <= self.now_ms:
            yield self._left.popleft()

    def passed(self, step: Step) -> None:
        """Time goes on."""
        if step.total:
            self.now_ms += self._duration.of(step.total)

    @property
    def waits(self) -> bool:
        """Always: empty steps take no time."""
        return True


def play(
    scenario: Scenario,
    workload: Workload,
    watchers: tuple[Watcher, ...],
    duration: Duration | None = None,
) -> Played:
    """Plays a workload to its end, or until nothing moves any more.

    Args:
        scenario: the server; its own requests are ignored.
        watchers: told of every request and step.
        duration: how long steps last; needed when requests arrive by the clock.

    Raises:
        UsageError: requests arrive by the clock and no duration was given.
    """
    pace = _pace(workload, duration)
    simulation = Simulation(replace(scenario, requests=()))
    progress = Progress()
    steps = finished = preemptions = 0
    stall: Stall | None = None
    while True:
        for item in pace.due(simulation):
            simulation.add(request_of(item))
            for watcher in watchers:
                watcher.sent(item)
        was_busy = simulation.busy
        step = simulation.step()
        if step is None:
            if not was_busy and pace.empty:
                break
            continue
        pace.passed(step)
        preemptions += len(step.preempted)
        finished += len(step.finished)
        if step.total:
            steps += 1
            for watcher in watchers:
                watcher.add(Stretch(first=step, count=1))
        if progress.hopeless(step) and pace.waits:
            stall = simulation.stall()
            if stall is not None:
                break
    return Played(
        steps=steps,
        finished=finished,
        preemptions=preemptions,
        stall=stall,
        simulated_ms=pace.now_ms if isinstance(pace, _Timed) else None,
    )


def _pace(workload: Workload, duration: Duration | None) -> _Stepped:
    if workload.pacing == "closed loop":
        return _Closed(workload)
    if workload.pacing == "stepped":
        return _Stepped(sorted(workload.items, key=lambda item: item.arrival_step))
    if duration is None:
        message = (
            "requests that arrive by the clock need to know how long a step lasts: give --step-ms"
            " and --token-ms"
        )
        raise UsageError(message)
    return _Timed(sorted(workload.items, key=lambda item: item.arrival_ms), duration)


def request_of(item: WorkItem) -> Request:
    """The request as the scheduler sees it."""
    return Request(
        id=item.id,
        prompt_len=item.prompt_tokens,
        output_len=item.output_tokens,
        arrival_step=item.arrival_step,
        priority=item.priority,
        prefix_id=item.prefix_id,
        prefix_len=item.prefix_tokens,
        prefix_names=item.prefix_names,
        prefix_name_tokens=item.prefix_name_tokens,
    )
