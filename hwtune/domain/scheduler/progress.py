"""Whether a run still gets anywhere."""

from __future__ import annotations

from hwtune.domain.scheduler.values import Step

_PATIENCE_STEPS = 4
"""Empty steps after which nothing will move any more: without arrivals they all are the same."""


class Progress:
    """Watches the steps of a run to which no request will come any more."""

    def __init__(self) -> None:
        self._idle = 0
        self._outgrown: str | None = None

    def hopeless(self, step: Step) -> bool:
        """Whether no later step can bring anything new, to be asked once per step.

        Two ends are known: several steps without a token, and a request that had the engine to
        itself, ran out of blocks, preempted itself, and came to the same point again.
        """
        if step.total or step.finished:
            self._idle = 0
        else:
            self._idle += 1
        if step.out:
            self._outgrown = None
        if step.preempted and not step.running:
            again = self._outgrown == step.preempted[-1]
            self._outgrown = step.preempted[-1]
            return again
        return self._idle >= _PATIENCE_STEPS
