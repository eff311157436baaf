"""Quantiles of both arms, and the interval of their ratio over blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from hwtune.domain.bench import QuantileResult
from hwtune.domain.bench_metrics import Metric
from hwtune.domain.stats import bootstrap_level, seed_name
from hwtune.domain.workload import MINIMUM_PAIRS

SHARES: Final[dict[str, float]] = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
"""Statistics by the names that ``vllm bench serve`` gives them."""
_RESAMPLES = 2000

Unit = tuple[Sequence[float], Sequence[float]]
"""Samples of the baseline and of the candidate: of one pair of blocks, or of one prompt."""


def quantile_results(
    metric: Metric, units: Sequence[Unit], *, level: float, judged: Sequence[str] = ()
) -> tuple[QuantileResult, ...]:
    """Every quantile of a latency in milliseconds; a ratio and its interval for those ``judged``.

    Args:
        metric: a latency.
        units: samples in seconds.
        level: confidence of the intervals.
        judged: statistics that are asked about; intervals of all would cost seconds.
    """
    if not units:
        return ()
    return tuple(
        _result(metric, name, share, units, level if name in judged else None)
        for name, share in SHARES.items()
    )


def _result(
    metric: Metric, name: str, share: float, units: Sequence[Unit], level: float | None
) -> QuantileResult:
    import numpy as np

    first, second = (np.concatenate([unit[side] for unit in units]) for side in (0, 1))
    values = float(np.quantile(first, share)), float(np.quantile(second, share))
    judged = level is not None and min(values) > 0
    interval = None
    if judged and level is not None and len(units) >= MINIMUM_PAIRS:
        interval = _interval(units, share, level)
    return QuantileResult(
        metric=metric,
        statistic=name,
        baseline=values[0] * 1e3,
        candidate=values[1] * 1e3,
        ratio=values[1] / values[0] if judged else None,
        interval=interval,
    )


def _interval(units: Sequence[Unit], share: float, level: float) -> tuple[float, float]:
    """Percentile bootstrap of the ratio of quantiles, whole units resampled, both arms together.

    The level is expanded for small samples as for means.
    """
    import numpy as np
    from scipy import stats

    sides = [[np.asarray(unit[side], dtype=float) for unit in units] for side in (0, 1)]

    def log_ratio(chosen: Any) -> float:  # noqa: ANN401 - a numpy array of unit numbers
        first, second = (
            np.quantile(np.concatenate([side[int(k)] for k in chosen]), share) for side in sides
        )
        return math.log(max(float(second), 1e-9) / max(float(first), 1e-9))

    seed: dict[str, Any] = {seed_name(): np.random.default_rng(0)}
    found = stats.bootstrap(
        (np.arange(len(units)),),
        log_ratio,
        confidence_level=bootstrap_level(len(units), level),
        n_resamples=_RESAMPLES,
        method="percentile",
        vectorized=False,
        **seed,
    ).confidence_interval
    return math.exp(float(found.low)), math.exp(float(found.high))
