"""Keeps the first steps of a run, for people to look at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from hwtune.domain.scheduler.classify import (
    AscendClasses,
    BatchRow,
    RunnerOptions,
    ascend_classes,
)
from hwtune.domain.scheduler.kernel_paths import KernelPaths
from hwtune.domain.scheduler.prediction import OWN_PATH
from hwtune.domain.scheduler.values import ScheduledRow, Step, Stretch
from hwtune.domain.scheduler.workloads import WorkItem

RowWork = Literal["prompt", "decode", "verify", "recompute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownStep:
    """One step with what it is for the kernels."""

    step: Step
    rows: tuple[ScheduledRow, ...]
    path: str
    """The kernel that takes the attention of the step, or vLLM's own path."""
    reasons: tuple[str, ...]
    """``kernel: why it does not take the step``, of kernels that do not."""
    ascend: AscendClasses | None
    """Only on an NPU."""


MOST_ROWS: Final = 200_000
"""Rows of all steps together; beyond it a page of them is slow to open."""


@dataclass(slots=True)
class Timeline:
    """Collects steps until ``limit`` or ``MOST_ROWS``. Mutable: it is filled as the run goes on."""

    paths: KernelPaths
    limit: int
    ascend: RunnerOptions | None = None
    steps: list[ShownStep] = field(default_factory=list)
    items: dict[str, WorkItem] = field(default_factory=dict)
    """By id, in the order in which they were sent."""
    total_steps: int = 0
    """Steps of the run, those beyond the limit included."""
    total_rows: int = 0
    """Rows that were kept."""

    @property
    def full(self) -> bool:
        """Whether no further step is kept."""
        return len(self.steps) >= self.limit or self.total_rows >= MOST_ROWS

    def sent(self, item: WorkItem) -> None:
        """A request was given to the server."""
        if not self.full:
            self.items[item.id] = item

    def add(self, stretch: Stretch) -> None:
        """The steps of a stretch, as far as there is room."""
        self.total_steps += stretch.count
        if self.full:
            return
        for step in stretch.steps():
            if self.full:
                return
            self.steps.append(self._shown(step))
            self.total_rows += len(step.entries)

    def _shown(self, step: Step) -> ShownStep:
        rows = step.rows
        batch = [BatchRow(row.tokens, row.computed, row.drafts, row.prompt_len) for row in rows]
        if not batch:
            return ShownStep(step=step, rows=(), path=OWN_PATH, reasons=(), ascend=None)
        outcome = self.paths.step(batch)
        names = (spec.name for spec in self.paths.kernels)
        return ShownStep(
            step=step,
            rows=rows,
            path=outcome.taken_by or OWN_PATH,
            reasons=tuple(
                f"{name}: {reason}"
                for name, reason in zip(names, outcome.reasons, strict=True)
                if reason is not None
            ),
            ascend=None if self.ascend is None else ascend_classes(batch, self.ascend),
        )


def row_work(row: ScheduledRow) -> RowWork:
    """What a row does in its step."""
    if row.prefilling:
        return "prompt"
    if row.tokens - row.drafts > 1:
        return "recompute"
    return "verify" if row.drafts else "decode"
