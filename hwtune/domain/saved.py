"""Result files of others, judged by the same rules as far as they carry evidence.

Two saved runs were made one after the other: a drift between them looks like a difference. That is
said with every verdict; only an interleaved run excludes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from hwtune.domain.bench import (
    Comparison,
    Gate,
    MetricResult,
    QuantileResult,
    TierResult,
    Verdict,
)
from hwtune.domain.bench_metrics import OUTPUT_THROUGHPUT, Metric
from hwtune.domain.quantiles import quantile_results
from hwtune.domain.saved_drift import explained, outlier_lines, run_drift
from hwtune.domain.saved_gates import answered, blocking, saved_gates, texts_of
from hwtune.domain.saved_intervals import Bounds, latency_bounds, log_ratios, wider
from hwtune.domain.saved_run import LATENCIES, Pair, SavedRequest, SavedRun
from hwtune.domain.stats import judge, mean, median
from hwtune.domain.workload import check_levels

SEQUENTIAL = "the runs were made one after the other, so a drift between them is not excluded"
_REPETITIONS_DIFFER = "inconclusive: the repetitions of an arm differ from each other as the arms do; more would decide"


def compare_saved(
    runs: Sequence[tuple[str, SavedRun, SavedRun]],
    *,
    margin: float,
    confidence: float,
    notes: Sequence[str] = (),
    judged: Sequence[tuple[str, str]] = (),
) -> Comparison:
    """Judges pairs of saved runs, one per tier: (tier, baseline, candidate).

    Args:
        runs: what is compared.
        margin: a change within it is none.
        confidence: of all tiers together.
        notes: shown below the result.
        judged: (metric, quantile) pairs whose ratio is wanted too.

    Raises:
        UsageError: the margin or the confidence is out of range.
    """
    check_levels(margin, confidence)
    level = 1.0 - (1.0 - confidence) / len(runs)
    tiers = tuple(_tier(name, first, second, margin, level, judged) for name, first, second in runs)
    unchecked = [
        Gate(name=name, state="not checked", evidence="a result file does not tell")
        for name in ("markers of the arms", "kernels hit", "arms differ only in what was declared")
    ]
    order = Gate(name="interleaved order", state="not checked", evidence=SEQUENTIAL)
    return Comparison(
        model=str(runs[0][1].workload.get("model", "unknown")),
        confidence=confidence,
        margin=margin,
        unit="prompts",
        conditions={"baseline": runs[0][1].source, "candidate": runs[0][2].source},
        gates=(*unchecked, order),
        tiers=tiers,
        notes=(*notes, SEQUENTIAL),
    )


def _tier(
    name: str,
    first: SavedRun,
    second: SavedRun,
    margin: float,
    level: float,
    judged: Sequence[tuple[str, str]],
) -> TierResult:
    good = answered(first, second)
    gates = saved_gates(first, second)
    red = [gate for gate in gates if gate.state == "failed"]
    texts = texts_of(good)
    counted = [request.input_tokens for pair in good for request in pair]
    stated = [metric for metric, _ in LATENCIES if not blocking(metric, red)]
    drift = run_drift(first, second) if stated else None
    bounds = {
        metric.name: latency_bounds(first, second, _in_time(good), read, level)
        for metric, read in LATENCIES
        if metric in stated
    }
    return TierResult(
        tier=name,
        pairs_done=len(good),
        pairs_planned=max(len(first.requests), len(second.requests)),
        prompts=len(good),
        prompt_tokens=(min(counted), max(counted)) if counted else None,
        text_agreement=mean([float(a == b) for a, b in texts]) if texts else None,
        gates=gates,
        metrics=(
            *(
                explained(
                    _latency(metric, read, good, red, bounds.get(metric.name), margin),
                    metric,
                    drift,
                )
                for metric, read in LATENCIES
            ),
            _throughput(first, second, red),
        ),
        drift=(*outlier_lines(good), *(drift.lines if drift else ())),
        quantiles=_quantiles(good, bounds, level, judged),
    )


def _in_time(pairs: Sequence[Pair]) -> list[Pair]:
    """As the baseline sent them, where it tells."""
    if any(a.start_s is None for a, _ in pairs):
        return list(pairs)
    return sorted(pairs, key=lambda pair: pair[0].start_s or 0.0)


def _quantiles(
    pairs: Sequence[Pair],
    bounds: Mapping[str, Bounds],
    level: float,
    judged: Sequence[tuple[str, str]],
) -> tuple[QuantileResult, ...]:
    """A quantile's interval is wider than its bootstrap says by as much as that of the mean is."""
    return tuple(
        wider(result, bounds[metric.name].wider_by) if result.interval else result
        for metric, read in LATENCIES
        for result in quantile_results(
            metric,
            [((read(a),), (read(b),)) for a, b in pairs],
            level=level,
            judged=[s for n, s in judged if n == metric.name and metric.name in bounds],
        )
    )


def _latency(
    metric: Metric,
    read: Callable[[SavedRequest], float],
    pairs: Sequence[Pair],
    red: Sequence[Gate],
    bounds: Bounds | None,
    margin: float,
) -> MetricResult:
    """``bounds`` is None for a metric that a red gate voids."""
    interval, ratio, more = None, None, None
    logs = log_ratios(pairs, read)
    if bounds is None:
        verdict = _not_comparable(blocking(metric, red)[0])
    else:
        verdict, more = judge(logs, bounds.interval, better=metric.better, margin=margin)
        verdict = _as_prompts(verdict)
        if bounds.by_repetitions and verdict.kind == "inconclusive":
            verdict, more = Verdict(kind="inconclusive", text=_REPETITIONS_DIFFER), None
        ratio = math.exp(mean(logs)) if logs else None
        interval = bounds.ratios
    return MetricResult(
        metric=metric,
        blocks=len(logs),
        baseline=_in_ms([read(a) for a, _ in pairs]),
        candidate=_in_ms([read(b) for _, b in pairs]),
        ratio=ratio,
        interval=interval,
        verdict=verdict,
        more_blocks=more,
    )


def _as_prompts(verdict: Verdict) -> Verdict:
    """Here the unit is a prompt, not a block."""
    return Verdict(kind=verdict.kind, text=verdict.text.replace("block", "prompt"))


def _in_ms(values: Sequence[float]) -> float | None:
    middle = median(values)
    return None if middle is None else middle * 1e3


def _throughput(first: SavedRun, second: SavedRun, red: Sequence[Gate]) -> MetricResult:
    """One number per run: shown, and without an interval never judged."""
    text = "inconclusive: one value per run has no interval"
    verdict = _not_comparable(red[0]) if red else Verdict(kind="inconclusive", text=text)
    return MetricResult(
        metric=OUTPUT_THROUGHPUT,
        blocks=1,
        baseline=first.output_throughput or None,
        candidate=second.output_throughput or None,
        ratio=None,
        interval=None,
        verdict=verdict,
    )


def _not_comparable(red: Gate) -> Verdict:
    return Verdict(kind="not comparable", text=f"not comparable: {red.name}: {red.evidence}")
