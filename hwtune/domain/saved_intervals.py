"""How surely the difference of two saved runs is known.

What is paired is prompts, and prompts of one run share its moments: neighbours in time resemble each
other, and all of them what the run as a whole was. Repetitions tell how much runs differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hwtune.domain.bench import QuantileResult
from hwtune.domain.saved_run import Pair, SavedRequest, SavedRun
from hwtune.domain.stats import (
    interval_of_difference,
    interval_of_mean,
    interval_of_series,
    mean,
)
from hwtune.domain.workload import MINIMUM_PAIRS

Read = Callable[[SavedRequest], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Interval of a mean log-ratio, and where its width comes from."""

    interval: tuple[float, float] | None
    """None below the fewest prompts that a verdict needs."""
    by_repetitions: bool = False
    """Whether the differences between repetitions, not between prompts, decide its width."""
    wider_by: float = 1.0
    """Its width over that of independent prompts."""

    @property
    def ratios(self) -> tuple[float, float] | None:
        """The interval of the ratio."""
        low_high = self.interval
        return None if low_high is None else (math.exp(low_high[0]), math.exp(low_high[1]))


def log_ratios(pairs: Sequence[Pair], read: Read) -> list[float]:
    """log(candidate / baseline) per prompt, where both have such a time."""
    return [math.log(read(b) / read(a)) for a, b in pairs if read(a) > 0 and read(b) > 0]


def latency_bounds(
    first: SavedRun, second: SavedRun, pairs: Sequence[Pair], read: Read, level: float
) -> Bounds:
    """On each side the widest of: prompts in the order of time, and repetitions where there are.

    Args:
        first: baseline.
        second: candidate.
        pairs: their answers to the same prompts, in the order in which they were sent.
        read: the latency of a request.
        level: confidence.
    """
    logs = log_ratios(pairs, read)
    if len(logs) < MINIMUM_PAIRS:
        return Bounds(interval=None)
    independent, series = interval_of_mean(logs, level), interval_of_series(logs, level)
    runs = interval_of_difference(run_levels(first, read), run_levels(second, read), level)
    half = 0.0 if runs is None else (runs[1] - runs[0]) / 2
    center, plain = mean(logs), independent[1] - independent[0]
    widest = min(series[0], center - half), max(series[1], center + half)
    return Bounds(
        interval=widest,
        by_repetitions=2 * half > series[1] - series[0],
        wider_by=(widest[1] - widest[0]) / plain if plain > 0 else 1.0,
    )


def run_levels(run: SavedRun, read: Read) -> list[float]:
    """Mean log latency of each repetition over all its prompts."""
    found = []
    for part in run.parts:
        times = [read(request) for request in part.requests if not request.error]
        logs = [math.log(time) for time in times if time > 0]
        found += [mean(logs)] if logs else []
    return found


def wider(result: QuantileResult, factor: float) -> QuantileResult:
    """The interval of a quantile's ratio, stretched about the ratio."""
    if result.interval is None or not result.ratio:
        return result
    low, high = (
        math.exp(math.log(result.ratio) + factor * math.log(bound / result.ratio))
        for bound in result.interval
    )
    return replace(result, interval=(low, high))
