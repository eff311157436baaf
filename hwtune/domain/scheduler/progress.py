"""Whether a run still gets anywhere."""

from __future__ import annotations

from collections import Counter

from hwtune.domain.scheduler.values import Entry, Step

_PATIENCE_STEPS = 4
"""Empty steps after which nothing will move any more: without arrivals they all are the same."""
_PATIENCE_ROUNDS = 3
"""Equal rounds between two preemptions after which every further one is equal, too."""

_Round = tuple[tuple[tuple[Entry, ...], ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]


class Progress:
    """Watches the steps of a run to which no request will come any more."""

    def __init__(self) -> None:
        self._idle = 0
        self._outgrown: str | None = None
        self._rows: list[tuple[Entry, ...]] = []
        self._rounds: Counter[_Round] = Counter()

    def hopeless(self, step: Step) -> bool:
        """Whether no later step can bring anything new, to be asked once per step.

        Three ends are known: several steps without a token; a request that had the engine to
        itself, ran out of blocks, preempted itself, and came to the same point again; and requests
        that are preempted in turn, always after the same rows and without a token for anybody.
        """
        self._idle = 0 if step.total or step.finished else self._idle + 1
        if step.out:
            self._outgrown = None
            self._rows.clear()
            self._rounds.clear()
        elif step.total:
            self._rows.append(step.shifted)
        if step.preempted:
            again = self._again(step)
            if again or not step.running:
                return again
        return self._idle >= _PATIENCE_STEPS

    def _again(self, step: Step) -> bool:
        around = (tuple(self._rows), step.preempted, step.running, step.waiting)
        self._rows.clear()
        self._rounds[around] += 1
        if step.running:
            return self._rounds[around] >= _PATIENCE_ROUNDS
        again = self._outgrown == step.preempted[-1]
        self._outgrown = step.preempted[-1]
        return again
