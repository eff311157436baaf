"""Statistics of paired blocks: one interval, one rule for the verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from hwtune.domain.bench import Verdict
from hwtune.domain.workload import MINIMUM_PAIRS

_RESAMPLES = 9999
_MOST_BLOCKS_TO_PROMISE = 10_000


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


def bootstrap_interval(values: Sequence[float], confidence: float) -> tuple[float, float]:
    """Interval of the mean of ``values`` (one per pair of blocks, at least two).

    scipy's percentile bootstrap, with the confidence level expanded for small samples: the level
    is 2 Phi(sqrt(n/(n-1)) t) - 1, with t Student's quantile at n-1 degrees of freedom. The plain
    percentile (and BCa) interval is too narrow below some thirty values.

    Source: Hesterberg, "What Teachers Should Know About the Bootstrap", 2015, section 3.2.
    """
    import numpy as np
    from scipy import stats

    data = np.asarray(values, dtype=float)
    if np.ptp(data) == 0.0:
        return float(data[0]), float(data[0])
    size = len(data)
    quantile = float(stats.t.ppf((1.0 + confidence) / 2.0, size - 1))
    level = 2.0 * float(stats.norm.cdf(math.sqrt(size / (size - 1)) * quantile)) - 1.0
    interval = stats.bootstrap(
        (data,),
        np.mean,
        confidence_level=min(level, 1.0 - 1e-4),
        n_resamples=_RESAMPLES,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(interval.low), float(interval.high)


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
        return _inconclusive(missing, f" (a verdict needs {MINIMUM_PAIRS} blocks)"), missing
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
    return _inconclusive(more, ""), more


def _more_blocks(estimate: float, half_width: float, margin: float, count: int) -> int:
    """Pairs to add until the interval, shrinking with 1/sqrt(n), would exclude 1 or fit."""
    wanted = max(abs(estimate), margin - abs(estimate))
    total = count * (half_width / wanted) ** 2
    return max(1, math.ceil(min(total, _MOST_BLOCKS_TO_PROMISE)) - count)


def _inconclusive(more: int, why: str) -> Verdict:
    shown = f"over {more}" if more >= _MOST_BLOCKS_TO_PROMISE / 2 else str(more)
    noun = "block" if more == 1 else "blocks"
    return Verdict(kind="inconclusive", text=f"inconclusive: {shown} more {noun} would decide{why}")
