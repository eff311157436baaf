"""Adds up what the steps of a run mean for the kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hwtune.domain.scheduler.ascend_calls import AscendRunner
from hwtune.domain.scheduler.attention_work import LayerCost, Work, step_work
from hwtune.domain.scheduler.classify import BatchRow
from hwtune.domain.scheduler.graphs import GraphSettings, graph_use
from hwtune.domain.scheduler.kernel_paths import (
    KernelPaths,
    KernelPhase,
    Outcome,
    has_prefill,
    kernel_phase,
)
from hwtune.domain.scheduler.values import Stretch
from hwtune.domain.scheduler.workloads import WorkItem

OWN_PATH = "vLLM's own"
"""Name of the path that no kernel of the profile takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelForecast:
    """What one kernel would get to do."""

    name: str
    phase: KernelPhase
    """The steps it is made for, which its hit rate is a share of."""
    hit_steps: int
    eligible_steps: int
    """Steps of its phase."""
    eligible_hits: int
    fallbacks: Mapping[str, int]
    """Reason -> steps; most frequent first."""
    eligible_fallbacks: Mapping[str, int]
    """The same, of the steps of its phase."""
    work: Work
    """What it takes over."""

    @property
    def hit_rate(self) -> float | None:
        """Share of the steps of its phase; None without any."""
        return self.eligible_hits / self.eligible_steps if self.eligible_steps else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A run, as the kernels would see it."""

    work: Work
    """Everything that was scheduled."""
    prefill_steps: int
    """Steps that compute part of a prompt."""
    mixed_steps: int
    """Steps with prompt work and decodes together."""
    kernels: tuple[KernelForecast, ...]
    paths: Mapping[str, int]
    """Path -> steps; the kernels and vLLM's own."""
    ascend_states: Mapping[str, int] = field(default_factory=dict)
    """State stored by runner v1 -> steps; only on an NPU."""
    ascend_calls: Mapping[str, int] = field(default_factory=dict)
    """Operator and the rows it takes -> calls per layer; only on an NPU."""
    graphs: Mapping[str, int] = field(default_factory=dict)
    """full, piecewise or eager -> steps."""
    padding_tokens: int = 0
    """Tokens that replayed graphs compute in vain."""

    def kernel(self, name: str) -> KernelForecast | None:
        """The forecast of one kernel."""
        return next((kernel for kernel in self.kernels if kernel.name == name), None)


@dataclass(slots=True)
class _Tally:
    """Of one kernel. Mutable: it is filled as the run goes on."""

    hits: int = 0
    eligible: int = 0
    eligible_hits: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)
    eligible_fallbacks: Counter[str] = field(default_factory=Counter)
    work: Work = field(default_factory=Work)


class Forecaster:
    """Takes the steps of a run one stretch after the other; memory does not grow with the run."""

    def __init__(
        self,
        paths: KernelPaths,
        cost: LayerCost,
        *,
        graphs: GraphSettings | None = None,
        ascend: AscendRunner | None = None,
    ) -> None:
        self._paths = paths
        self._cost = cost
        self._graph_settings = graphs
        self._ascend = ascend
        self._phases = tuple(kernel_phase(spec) for spec in paths.kernels)
        self._tallies = tuple(_Tally() for _ in paths.kernels)
        self._work = Work()
        self._prefill_steps = 0
        self._mixed_steps = 0
        self._path_steps: Counter[str] = Counter()
        self._states: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._graphs: Counter[str] = Counter()
        self._padding = 0

    def sent(self, item: WorkItem) -> None:
        """Requests are not counted, steps are."""

    def add(self, stretch: Stretch) -> Outcome | None:
        """Counts a stretch and gives the outcome of its first step; None for an empty one."""
        rows = batch_rows(stretch)
        if not rows:
            return None
        self._count_classes(rows, stretch.count)
        first: Outcome | None = None
        at = 0
        for outcome, count in self._outcomes(rows, stretch.count):
            first = first or outcome
            self._count(_later(rows, at), outcome, count)
            at += count
        return first

    def _outcomes(self, rows: Sequence[BatchRow], count: int) -> list[tuple[Outcome, int]]:
        """Runs of equal outcomes. Only the context grows, and conditions on it hold from a length
        on, so equal ends mean an equal stretch."""
        first = self._paths.step(rows)
        if count == 1:
            return [(first, 1)]
        if first == self._paths.step(rows, count - 1):
            return [(first, count)]
        half = count // 2
        return [
            *self._outcomes(rows, half),
            *self._outcomes(_later(rows, half), count - half),
        ]

    def _count_classes(self, rows: Sequence[BatchRow], count: int) -> None:
        if has_prefill(rows):
            self._prefill_steps += count
            self._mixed_steps += count * any(not has_prefill([row]) for row in rows)
        if self._ascend is not None:
            self._count_ascend(rows, self._ascend, count)
        if self._graph_settings is not None:
            use = graph_use(rows, self._graph_settings)
            self._graphs[use.kind] += count
            self._padding += count * (use.padded_tokens - sum(row[0] for row in rows))

    def _count_ascend(self, rows: Sequence[BatchRow], ascend: AscendRunner, count: int) -> None:
        state, calls = ascend.step(rows)
        self._states[state] += count
        for call in calls:
            self._calls[f"{call.operator}, {call.part}"] += count

    def _count(self, rows: Sequence[BatchRow], outcome: Outcome, count: int) -> None:
        work = step_work(rows, self._cost, count)
        self._work = self._work.plus(work)
        self._path_steps[outcome.taken_by or OWN_PATH] += count
        prefill = has_prefill(rows)
        for tally, phase, reason in zip(self._tallies, self._phases, outcome.reasons, strict=True):
            eligible = phase == "any" or (phase == "prefill") == prefill
            tally.eligible += count * eligible
            if reason is None:
                tally.hits += count
                tally.eligible_hits += count * eligible
                tally.work = tally.work.plus(work)
            else:
                tally.fallbacks[reason] += count
                if eligible:
                    tally.eligible_fallbacks[reason] += count

    def result(self) -> Forecast:
        """Everything counted so far."""
        return Forecast(
            work=self._work,
            prefill_steps=self._prefill_steps,
            mixed_steps=self._mixed_steps,
            kernels=tuple(map(self._kernel, range(len(self._tallies)))),
            paths=dict(self._path_steps),
            ascend_states=dict(self._states.most_common()),
            ascend_calls=dict(self._calls.most_common()),
            graphs=dict(self._graphs.most_common()),
            padding_tokens=self._padding,
        )

    def _kernel(self, at: int) -> KernelForecast:
        tally = self._tallies[at]
        return KernelForecast(
            name=self._paths.kernels[at].name,
            phase=self._phases[at],
            hit_steps=tally.hits,
            eligible_steps=tally.eligible,
            eligible_hits=tally.eligible_hits,
            fallbacks=dict(tally.fallbacks.most_common()),
            eligible_fallbacks=dict(tally.eligible_fallbacks.most_common()),
            work=tally.work,
        )


def batch_rows(stretch: Stretch) -> list[BatchRow]:
    """The rows of a stretch's first step."""
    shift = stretch.first.shift
    return [
        BatchRow(tokens, computed + shift, drafts, prompt)
        for _, tokens, computed, drafts, _, prompt, _ in stretch.first.entries
    ]


def _later(rows: Sequence[BatchRow], steps: int) -> Sequence[BatchRow]:
    if not steps:
        return rows
    return [BatchRow(q, computed + steps, drafts, prompt) for q, computed, drafts, prompt in rows]
