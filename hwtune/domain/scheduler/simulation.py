"""The engine with a model that only counts tokens, driven step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hwtune.domain.scheduler.engine import Engine
from hwtune.domain.scheduler.live import Live
from hwtune.domain.scheduler.outputs import Outputs
from hwtune.domain.scheduler.plan import Plan
from hwtune.domain.scheduler.progress import Progress
from hwtune.domain.scheduler.setup import Setup, prepare
from hwtune.domain.scheduler.stall import explain_stall
from hwtune.domain.scheduler.values import Request, Scenario, Stall, Status, Step


@dataclass(slots=True, kw_only=True)
class _Batch:
    """A scheduled step whose output is not processed yet."""

    plan: Plan
    step: Step


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
        self._engine.waiting.add(Live(request, order, float(order), groups))

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
        if self._schedulable:
            self._batches.append(self._schedule())
            if len(self._batches) < self._depth:
                return None
        if not self._batches:
            return None
        batch = self._batches.popleft()
        out, finished = self._outputs.process(batch.plan.picks)
        self._announce |= bool(finished)
        return replace(
            batch.step,
            free_after=self._engine.cache.pool.free,
            out=out,
            finished=tuple(finished),
        )

    def _schedule(self) -> _Batch:
        engine = self._engine
        plan = engine.schedule()
        self._announce = False
        total = sum([pick.tokens for pick in plan.picks])
        step = Step(
            index=self.clock,
            entries=tuple([pick.entry for pick in plan.picks]),
            total=total,
            budget_left=self._setup.max_scheduled - total,
            preempted=tuple([live.id for live in plan.preempted]),
            running=tuple([live.id for live in engine.running]),
            waiting=engine.waiting.ids(),
            blocks=dict(engine.tables),
            held=dict(engine.held),
            free=engine.cache.pool.free,
            free_after=0,
            out={},
            finished=(),
        )
        self.clock += 1
        return _Batch(plan=plan, step=step)


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
        simulation, progress = self._simulation, Progress()
        while simulation.busy or self._arrivals:
            self._arrive()
            step = simulation.step()
            if step is None:
                continue
            yield step
            if progress.hopeless(step) and not self._arrivals:
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
