"""Runs that were made one after the other: a drift inside them can look like a difference."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from hwtune.domain.bench import MetricResult, Verdict
from hwtune.domain.bench_metrics import Metric
from hwtune.domain.saved_intervals import run_levels
from hwtune.domain.saved_run import LATENCIES, Pair, SavedRequest, SavedRun
from hwtune.domain.stats import mean, median

OUTLIER_FACTOR: Final = 3.0
_FEWEST_PAIRS: Final = 3
"""The middle of three is not moved by one outlier."""
_FEWEST_REQUESTS: Final = 8
_CONFIDENCE: Final = 0.99
_EXPLAINS: Final = 0.5
"""A drift that would by itself make half of the difference leaves nothing to claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """Change of log(latency) per second inside one run, at equal lengths."""

    per_s: float
    error_per_s: float
    seconds: float
    """From its first to its last request."""
    significant: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDrift:
    """What the trends inside two runs would make of the time between them."""

    expected: dict[str, float]
    """Metric -> log(candidate / baseline) that the drift alone would show."""
    lines: tuple[str, ...]


def run_drift(first: SavedRun, second: SavedRun) -> RunDrift | None:
    """None where the files do not tell when requests were sent."""
    if first.repetitions or second.repetitions:
        return _drift_of_repetitions(first, second)
    expected: dict[str, float] = {}
    lines: list[str] = []
    for metric, read in LATENCIES:
        trends = [_trend(run.requests, read) for run in (first, second)]
        for arm, trend in zip(("baseline", "candidate"), trends, strict=True):
            if trend is not None and trend.significant:
                change = math.expm1(trend.per_s * trend.seconds) * 100
                lines.append(
                    f"drift: {arm} {metric.title} {change:+.1f} % from its first to its last request"
                )
        known = [trend for trend in trends if trend is not None]
        if any(trend.significant for trend in known):
            expected[metric.name] = _mean_slope(known) * _separation_s(first, second, known)
    return RunDrift(expected=expected, lines=tuple(lines)) if expected else None


def _drift_of_repetitions(first: SavedRun, second: SavedRun) -> RunDrift | None:
    """One slope inside both arms, from the levels of their repetitions over time."""
    sides = [[_middle(part) for part in run.parts] for run in (first, second)]
    times = [[middle for middle in side if middle is not None] for side in sides]
    if times != sides:
        return None
    expected: dict[str, float] = {}
    for metric, read in LATENCIES:
        above = below = 0.0
        for run, moments in zip((first, second), times, strict=True):
            levels = run_levels(run, read)
            if len(levels) == len(moments):
                off = [moment - mean(moments) for moment in moments]
                above += math.fsum(x * y for x, y in zip(off, levels, strict=True))
                below += math.fsum(x * x for x in off)
        if below > 0:
            expected[metric.name] = above / below * (mean(times[1]) - mean(times[0]))
    return RunDrift(expected=expected, lines=()) if expected else None


def _trend(requests: Iterable[SavedRequest], read: Callable[[SavedRequest], float]) -> Trend | None:
    """Least squares of log(latency) on time, with the lengths of prompt and answer held fixed."""
    import numpy as np
    from scipy import stats

    rows = [
        (r.start_s, math.log(max(r.input_tokens, 1)), math.log(r.output_tokens), math.log(read(r)))
        for r in requests
        if not r.error and r.start_s is not None and r.output_tokens > 0 and read(r) > 0
    ]
    if len(rows) < _FEWEST_REQUESTS:
        return None
    data = np.asarray(rows, dtype=float)
    time_s = data[:, 0] - data[:, 0].mean()
    fixed = [column - column.mean() for column in (data[:, 1], data[:, 2]) if np.ptp(column) > 0]
    factors = np.column_stack([time_s, np.ones(len(rows)), *fixed])
    freedom = len(rows) - factors.shape[1]
    found, _, rank, _ = np.linalg.lstsq(factors, data[:, 3], rcond=None)
    if np.ptp(time_s) <= 0 or rank < factors.shape[1] or freedom < 2:
        return None
    rest = data[:, 3] - factors @ found
    variance = float(rest @ rest) / freedom * np.linalg.inv(factors.T @ factors)[0, 0]
    slope, error = float(found[0]), max(math.sqrt(float(variance)), 1e-15)
    limit = float(stats.t.ppf((1 + _CONFIDENCE) / 2, freedom))
    return Trend(
        per_s=slope,
        error_per_s=error,
        seconds=float(np.ptp(time_s)),
        significant=abs(slope) > limit * error,
    )


def _mean_slope(trends: Sequence[Trend]) -> float:
    """Weighted by how well each is known."""
    weights = [trend.error_per_s**-2 for trend in trends]
    return math.fsum(w * t.per_s for w, t in zip(weights, trends, strict=True)) / math.fsum(weights)


def _separation_s(first: SavedRun, second: SavedRun, trends: Sequence[Trend]) -> float:
    """Between the middles of the runs, no more than both lasted: further out no trend can tell.

    Where the files do not say when they were made, the candidate's run followed at once.
    """
    lasted = math.fsum(trend.seconds for trend in trends) * 2 / len(trends)
    middles = [_middle(run) for run in (first, second)]
    if middles[0] is None or middles[1] is None:
        return lasted / 2
    apart = middles[1] - middles[0]
    return math.copysign(min(abs(apart), lasted), apart)


def _middle(run: SavedRun) -> float | None:
    if run.started_unix_s is None or run.ended_unix_s is None:
        return None
    return (run.started_unix_s + run.ended_unix_s) / 2


def explained(result: MetricResult, metric: Metric, drift: RunDrift | None) -> MetricResult:
    """A difference that the drift inside the runs would make by itself decides nothing."""
    expected = 0.0 if drift is None else drift.expected.get(metric.name, 0.0)
    if result.verdict.kind not in ("faster", "slower") or not result.ratio or not expected:
        return result
    if expected / math.log(result.ratio) < _EXPLAINS:
        return result
    text = (
        "inconclusive: the runs were made one after the other, and the drift inside them alone"
        f" would show {math.expm1(expected) * 100:+.1f} %"
    )
    return replace(result, verdict=Verdict(kind="inconclusive", text=text))


def outlier_lines(pairs: Sequence[Pair]) -> tuple[str, ...]:
    """Prompts whose latency is far from what the typical ratio of the arms predicts."""
    lines = []
    for metric, read in LATENCIES:
        logs = {
            index: math.log(read(b) / read(a))
            for index, (a, b) in enumerate(pairs, start=1)
            if read(a) > 0 and read(b) > 0 and _comparable(metric, a, b)
        }
        middle = median(list(logs.values()))
        if middle is None or len(logs) < _FEWEST_PAIRS:
            continue
        far = [k for k, log in logs.items() if abs(log - middle) > math.log(OUTLIER_FACTOR)]
        if far:
            shown = ", ".join(map(str, far[:5]))
            lines.append(
                f"outliers: {metric.title} of prompt {shown} over {OUTLIER_FACTOR:g} x off the"
                " typical ratio"
            )
    return tuple(lines)


def _comparable(metric: Metric, a: SavedRequest, b: SavedRequest) -> bool:
    """A whole answer of another length takes another time."""
    return metric.name != "e2el" or a.output_tokens == b.output_tokens
