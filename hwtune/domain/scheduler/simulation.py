"""The engine with a model that only counts tokens, driven step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from hwtune.domain.scheduler.engine import Engine
from hwtune.domain.scheduler.live import Live
from hwtune.domain.scheduler.outputs import Outputs
from hwtune.domain.scheduler.plan import Plan
from hwtune.domain.scheduler.progress import Progress
from hwtune.domain.scheduler.setup import Setup, prepare
from hwtune.domain.scheduler.stall import explain_stall
from hwtune.domain.scheduler.values import Entry, Request, Scenario, Stall, Status, Step, Stretch

_MANY = 1 << 60
"""More steps than any stretch has."""


@dataclass(slots=True, kw_only=True)
class _Batch:
    """A scheduled step whose output is not processed yet."""

    index: int
    plan: Plan
    tick: int
    view: _View


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """What the engine looks like right after scheduling."""

    entries: tuple[Entry, ...]
    preempted: tuple[str, ...]
    running: tuple[str, ...]
    waiting: tuple[str, ...]
    blocks: dict[str, tuple[int, ...]]
    held: dict[str, tuple[int, ...]]
    free: int


class Simulation:
    """Requests go in at any time; steps come out one by one.

    ``add`` requests whenever they arrive, then call ``step``. With async scheduling a step comes
    out one call later, when its output is processed; what arrives until then is scheduled in the
    step after the next one, as in the engine.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._setup = prepare(scenario)
        self._engine = Engine(self._setup)
        self._outputs = Outputs(self._engine, scenario.config)
        self._batches: deque[_Batch] = deque()
        self._depth = 2 if scenario.config.async_scheduling else 1
        self._count = 0
        self._announce = False
        self._last: _Batch | None = None
        self._changes = -1
        self._tables: dict[str, tuple[int, ...]] = {}
        self._held: dict[str, tuple[int, ...]] = {}
        self._running: tuple[str, ...] = ()
        self.clock = 0
        """Index of the next step to be scheduled; may be set forward while nothing is going on."""

    @property
    def setup(self) -> Setup:
        """What was derived from the configuration."""
        return self._setup

    def add(self, request: Request, number: int | None = None) -> None:
        """A request arrives: the next step can schedule it.

        Args:
            number: its rank by arrival time, which breaks ties of priority and chooses its place
                in the list of acceptances; None: as many as came before it.
        """
        order = self._count if number is None else number
        self._count += 1
        groups = len(self._setup.groups)
        self._engine.add(Live(request, order, float(order), groups))

    @property
    def busy(self) -> bool:
        """Whether steps are left: requests, a finish to be announced, or outputs to come."""
        return self._schedulable or bool(self._batches)

    @property
    def _schedulable(self) -> bool:
        engine = self._engine
        return bool(engine.running or len(engine.waiting)) or self._announce

    def stall(self) -> Stall | None:
        """Why nothing moves any more; to be asked after some empty steps."""
        return explain_stall(self._engine, self._setup)

    def step(self) -> Step | None:
        """Plays one step; None while the first one is still in flight, or when all is done."""
        stretch = self.advance(1)
        return stretch.first if stretch else None

    def advance(self, at_most: int) -> Stretch | None:
        """Plays steps until one differs from the one before, ``at_most`` of them.

        A stretch ends before anything finishes, so what depends on finishes can be added in time.

        Returns:
            At least one step; None while the first one is still in flight, or when all is done.
        """
        if self._schedulable:
            self._batches.append(self._schedule())
            if len(self._batches) < self._depth:
                return None
        if not self._batches:
            return None
        batch = self._batches.popleft()
        more = 0
        if at_most > 1 and batch.plan is self._engine.settled:
            more = min(at_most - 1, self._engine.settled_for())
            self._skip(more)
        return Stretch(first=self._processed(batch), count=1 + more)

    def _skip(self, steps: int) -> None:
        self._engine.skip(steps)
        self.clock += steps
        for batch in self._batches:
            batch.index += steps
            batch.tick += steps

    def _processed(self, batch: _Batch) -> Step:
        out, finished = self._outputs.process(batch.plan)
        self._announce |= bool(finished)
        view = batch.view
        left = batch.plan.budget
        return Step(
            index=batch.index,
            entries=view.entries,
            shift=batch.tick,
            total=self._setup.max_scheduled - left,
            budget_left=left,
            preempted=view.preempted,
            running=view.running,
            waiting=view.waiting,
            blocks=view.blocks,
            held=view.held,
            free=view.free,
            free_after=self._engine.cache.pool.free,
            out=out,
            finished=tuple(finished),
        )

    def _schedule(self) -> _Batch:
        engine = self._engine
        plan = engine.schedule()
        self._announce = False
        if self._last is None or self._last.plan is not plan:
            self._last = _Batch(index=0, plan=plan, tick=0, view=self._view(plan))
        batch = _Batch(index=self.clock, plan=plan, tick=engine.tick, view=self._last.view)
        self.clock += 1
        return batch

    def _view(self, plan: Plan) -> _View:
        engine = self._engine
        if self._changes != engine.changes:
            self._changes = engine.changes
            self._tables = dict(engine.tables)
            self._held = dict(engine.held)
            self._running = tuple([live.id for live in engine.running])
        return _View(
            entries=tuple(plan.entries),
            preempted=tuple([live.id for live in plan.preempted]),
            running=self._running,
            waiting=engine.waiting.ids(),
            blocks=self._tables,
            held=self._held,
            free=engine.cache.pool.free,
        )


class Run:
    """A scenario from its first arrival to its last finish."""

    def __init__(self, scenario: Scenario) -> None:
        self._simulation = Simulation(scenario)
        by_arrival = sorted(enumerate(scenario.requests), key=lambda pair: pair[1].arrival_step)
        self._arrivals = deque(by_arrival)
        self.setup = self._simulation.setup
        self.stall: Stall | None = None
        """Why the run ended before its requests did."""

    @property
    def status(self) -> Status:
        """How the run ended."""
        return "stuck" if self.stall else "ok"

    def steps(self) -> Iterator[Step]:
        """Every step in order; a run that is stuck ends when nothing new can come."""
        for stretch in self.stretches():
            yield from stretch.steps()

    def stretches(self) -> Iterator[Stretch]:
        """The same steps, those in one that only decode and differ in nothing else."""
        simulation, arrivals, progress = self._simulation, self._arrivals, Progress()
        while simulation.busy or arrivals:
            self._arrive()
            steps_left = arrivals[0][1].arrival_step - simulation.clock if arrivals else _MANY
            stretch = simulation.advance(max(steps_left, 1))
            if stretch is None:
                continue
            yield stretch
            if progress.hopeless(stretch.first) and not arrivals:
                self.stall = simulation.stall()
                if self.stall:
                    return

    def _arrive(self) -> None:
        simulation, arrivals = self._simulation, self._arrivals
        if arrivals and not simulation.busy:
            simulation.clock = max(simulation.clock, arrivals[0][1].arrival_step)
        while arrivals and arrivals[0][1].arrival_step <= simulation.clock:
            number, request = arrivals.popleft()
            simulation.add(request, number)


def simulate(scenario: Scenario) -> Iterator[Step]:
    """Every step of a scenario, in order.

    Raises:
        InputError: something in the scenario is not modelled.
    """
    return Run(scenario).steps()
