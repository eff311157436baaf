"""Statistics of paired blocks: one interval, one rule for the verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from hwtune.domain.bench import Verdict
from hwtune.domain.workload import MINIMUM_PAIRS

_RESAMPLES = 9999
_MOST_BLOCKS_TO_PROMISE = 1000
_MOST_ALIKE = 0.97
"""Neighbours more alike than this leave no spread to judge by."""


def median(values: Sequence[float]) -> float | None:
    """Middle value, the mean of the two middle ones, or None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[-middle - 1]) / 2


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean of at least one value."""
    return math.fsum(values) / len(values)


def finite_or_null(value: Any) -> Any:  # noqa: ANN401
    """JSON data in which NaN and infinities, which JSON does not have, are null."""
    if isinstance(value, dict):
        return {key: finite_or_null(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_null(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def interval_of_mean(values: Sequence[float], confidence: float) -> tuple[float, float]:
    """Interval of the mean of ``values`` (one per pair of blocks, at least two).

    On each side the wider of two: scipy's percentile bootstrap, with the level expanded for small
    samples to 2 Phi(sqrt(n/(n-1)) t) - 1; and Student's t. Alone, the plain percentile interval
    excludes the truth in 14 % of cases at six values where 5 % are promised, the expanded one in
    6 %, Student's t in 5 % (normal values) but in 11 % of skewed ones.

    Source: Hesterberg, "What Teachers Should Know About the Bootstrap", 2015, section 3.2; the
    rates were simulated, see docs/measuring.md.
    """
    import numpy as np
    from scipy import stats

    data = np.asarray(values, dtype=float)
    size = len(data)
    center, spread = float(np.mean(data)), float(np.std(data, ddof=1))
    # Equal up to rounding: nothing to resample.
    if spread <= 1e-12 * max(1.0, abs(center)):
        return center, center
    quantile = float(stats.t.ppf((1.0 + confidence) / 2.0, size - 1))
    seed: dict[str, Any] = {seed_name(): np.random.default_rng(0)}
    resampled = stats.bootstrap(
        (data,),
        np.mean,
        confidence_level=bootstrap_level(size, confidence),
        n_resamples=_RESAMPLES,
        method="percentile",
        vectorized=True,
        **seed,
    ).confidence_interval
    half = quantile * spread / math.sqrt(size)
    return min(float(resampled.low), center - half), max(float(resampled.high), center + half)


def interval_of_series(values: Sequence[float], confidence: float) -> tuple[float, float]:
    """Interval of the mean of values in the order of time, which may resemble their neighbours.

    Such values say less than as many independent ones: n (1 - r) / (1 + r) of them, where r is the
    lag-1 autocorrelation, corrected for its bias of (1 + 3 r) / n (Marriott and Pope, 1954). Never
    narrower than ``interval_of_mean``. Simulated rates: see docs/measuring.md.
    """
    import numpy as np
    from scipy import stats

    low, high = interval_of_mean(values, confidence)
    if high - low <= 0.0:
        return low, high
    size, center = len(values), mean(values)
    off = np.asarray(values, dtype=float) - center
    found = float(off[1:] @ off[:-1]) / float(off @ off)
    alike = min(max(found + (1.0 + 3.0 * found) / size, 0.0), _MOST_ALIKE)
    worth = max(size * (1.0 - alike) / (1.0 + alike), 2.0)
    half = float(stats.t.ppf((1.0 + confidence) / 2.0, worth - 1.0)) * float(np.std(off, ddof=1))
    half /= math.sqrt(worth)
    return min(low, center - half), max(high, center + half)


def interval_of_difference(
    first: Sequence[float], second: Sequence[float], confidence: float
) -> tuple[float, float] | None:
    """Interval of mean(second) - mean(first) of a few values each, by Student's t.

    The variance is pooled: three runs of an arm tell too little of their own. None without a second
    value on either side.
    """
    from scipy import stats

    freedom = len(first) + len(second) - 2
    if freedom < 1 or not first or not second:
        return None
    squares = [(value - mean(side)) ** 2 for side in (first, second) for value in side]
    error = math.sqrt(math.fsum(squares) / freedom * (1 / len(first) + 1 / len(second)))
    half = float(stats.t.ppf((1.0 + confidence) / 2.0, freedom)) * error
    center = mean(second) - mean(first)
    return center - half, center + half


def bootstrap_level(size: int, confidence: float) -> float:
    """Level of a percentile interval over ``size`` values, expanded as Hesterberg (2015) says."""
    from scipy import stats

    quantile = float(stats.t.ppf((1.0 + confidence) / 2.0, size - 1))
    level = 2.0 * float(stats.norm.cdf(math.sqrt(size / (size - 1)) * quantile)) - 1.0
    return min(level, 1.0 - 1e-4)


def seed_name() -> str:
    """Of the bootstrap's random generator: scipy renamed the argument in 1.15."""
    import scipy

    major, minor = scipy.__version__.split(".")[:2]
    return "rng" if (int(major), int(minor)) >= (1, 15) else "random_state"


def judge(
    log_ratios: Sequence[float],
    interval: tuple[float, float] | None,
    *,
    better: Literal["lower", "higher"],
    margin: float,
) -> tuple[Verdict, int | None]:
    """The verdict over paired log ratios, and how many more pairs would probably decide.

    Same: the whole interval lies within the margin. Faster or slower: the whole interval lies on
    one side of 1. Otherwise inconclusive.
    """
    count = len(log_ratios)
    if count < MINIMUM_PAIRS or interval is None:
        missing = MINIMUM_PAIRS - count
        text = f"inconclusive: a verdict needs {MINIMUM_PAIRS} blocks, {missing} more"
        return Verdict(kind="inconclusive", text=text), missing
    low, high = interval
    width = math.log1p(margin)
    if -width < low and high < width:
        text = f"no difference shown (same within ±{margin * 100:g} %)"
        return Verdict(kind="same", text=text), None
    if low > 0.0 or high < 0.0:
        kind: Literal["faster", "slower"] = (
            "faster" if (high < 0.0) == (better == "lower") else "slower"
        )
        return Verdict(kind=kind, text=kind), None
    more = _more_blocks(mean(log_ratios), (high - low) / 2.0, width, count)
    return _inconclusive(more), more


def _more_blocks(estimate: float, half_width: float, margin: float, count: int) -> int:
    """Pairs to add until the interval, shrinking with 1/sqrt(n), would exclude 1 or fit."""
    wanted = max(abs(estimate), margin - abs(estimate))
    more = count * (half_width / wanted) ** 2 - count
    return max(1, math.ceil(min(more, _MOST_BLOCKS_TO_PROMISE)))


def _inconclusive(more: int) -> Verdict:
    shown = f"{'over' if more >= _MOST_BLOCKS_TO_PROMISE else 'about'} {more}"
    noun = "block" if more == 1 else "blocks"
    return Verdict(kind="inconclusive", text=f"inconclusive: {shown} more {noun} would decide")
