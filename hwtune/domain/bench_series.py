"""The points behind a comparison, for pictures: every request, and every pair of blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hwtune.domain.bench import ARMS, Comparison, Phase, RequestRecord
from hwtune.domain.bench_values import log_ratio, metrics_of
from hwtune.domain.pairing import latest_attempts, paired_blocks
from hwtune.domain.workload import Design

SHOWN_PHASES: tuple[Phase, ...] = ("a/a", "measured")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One answered request."""

    arm: int
    """0 baseline, 1 candidate."""
    phase: Phase
    pair: int
    at_s: float
    """When it started, after the first request of the run."""
    ttft_ms: float | None
    tpot_ms: float | None
    e2el_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSeries:
    """One tier's points and the changes its intervals are taken over."""

    tier: str
    points: tuple[Point, ...]
    changes: dict[str, tuple[tuple[int, float], ...]]
    """Metric -> (pair of blocks, change of the candidate in percent). Empty when the tier is not
    comparable: a change that is not stated is not drawn either."""


def series(
    comparison: Comparison, design: Design, records: Sequence[RequestRecord]
) -> tuple[TierSeries, ...]:
    """One per tier of the comparison."""
    begin = min((record.started_unix_s for record in records), default=0.0)
    return tuple(
        TierSeries(
            tier=tier.tier,
            points=tuple(
                _point(record, begin)
                for phase in SHOWN_PHASES
                for record in latest_attempts(records, tier.tier, phase)
                if record.failure is None
            ),
            changes=_changes(design, records, tier.tier) if _stated(comparison, tier.tier) else {},
        )
        for tier in comparison.tiers
    )


def _stated(comparison: Comparison, tier: str) -> bool:
    results = [
        result for found in comparison.tiers if found.tier == tier for result in found.metrics
    ]
    return not comparison.red_gates and all(r.verdict.kind != "not comparable" for r in results)


def _point(record: RequestRecord, begin: float) -> Point:
    return Point(
        arm=ARMS.index(record.arm),
        phase=record.phase,
        pair=record.pair,
        at_s=round(record.started_unix_s - begin, 3),
        ttft_ms=_ms(record.ttft_s),
        tpot_ms=_ms(record.tpot_s),
        e2el_ms=_ms(record.e2el_s),
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 4)


def _changes(
    design: Design, records: Sequence[RequestRecord], tier: str
) -> dict[str, tuple[tuple[int, float], ...]]:
    blocks = paired_blocks(latest_attempts(records, tier), design)
    return {
        metric.name: tuple(
            (pair, round(math.expm1(log_ratio(metric, block, design.goals)) * 100.0, 3))
            for pair, block in blocks.items()
        )
        for metric in metrics_of(design)
    }
