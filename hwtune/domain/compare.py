"""Records in, judged comparison out."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import starmap

from hwtune.domain.bench import (
    ARMS,
    Comparison,
    Gate,
    MetricResult,
    QuantileResult,
    RequestRecord,
    TierResult,
    Verdict,
)
from hwtune.domain.bench_metrics import E2EL, Metric
from hwtune.domain.bench_values import (
    is_latency,
    log_ratio,
    metrics_of,
    positive,
    samples_s,
    side_of,
    typical,
)
from hwtune.domain.pairing import BlockPair, latest_attempts, paired_blocks, repeated
from hwtune.domain.quantiles import quantile_results
from hwtune.domain.stats import interval_of_mean, judge, mean
from hwtune.domain.validity import Pair, gate, tier_gates
from hwtune.domain.workload import MINIMUM_PAIRS, Design, Tier, check_levels

Judged = Sequence[tuple[str, str]]
"""Names of a metric and of a quantile."""


def compare(
    design: Design,
    records: Iterable[RequestRecord],
    run_gates: Sequence[Gate],
    notes: Sequence[str] = (),
    judged: Judged = (),
) -> Comparison:
    """Judges every metric in every tier. A red gate of the run or tier voids its metrics.

    Args:
        design: what was planned.
        records: what was measured.
        run_gates: those that concern the whole run.
        notes: shown below the result.
        judged: (metric, quantile) pairs whose ratio is wanted too.

    Raises:
        UsageError: the margin or the confidence is out of range.
    """
    check_levels(design.margin, design.confidence)
    records = tuple(records)
    red = [gate for gate in run_gates if gate.state == "failed"]
    return Comparison(
        model=design.model,
        confidence=design.confidence,
        margin=design.margin,
        conditions=_conditions(design),
        gates=tuple(run_gates),
        tiers=tuple(_tier(design, tier, records, red, judged) for tier in design.tiers),
        warm_up=warm_up_lines(records),
        notes=tuple(notes),
    )


def _conditions(design: Design) -> dict[str, str]:
    return {
        "profile": design.profile or "given urls",
        "mode": design.mode,
        "load": load_text(design),
        "endpoint": "/v1/chat/completions" if design.endpoint == "chat" else "/v1/completions",
        "output tokens": "as in the trace (ignore_eos)"
        if design.trace
        else f"{design.output_tokens}, fixed (ignore_eos)",
        "order": f"random ABBA/BAAB blocks, seed {design.seed}",
        "noise floor": f"{design.aa_pairs} A/A blocks"
        if design.aa_pairs
        else "not measured (--noise-floor)",
        "warm-up": f"{design.warm_up} request(s) per arm and tier, excluded",
        "vLLM flags": " ".join(design.flags) or "none",
        **({"goodput": goals_text(design)} if design.goals else {}),
    }


def load_text(design: Design) -> str:
    """How requests are sent."""
    if design.arrival == "closed":
        return f"closed loop, concurrency {design.concurrency}"
    if design.trace:
        pace = "its own pace" if design.rate_per_s is None else f"{design.rate_per_s:g} requests/s"
        return f"open loop, {len(design.trace)} requests of a trace at {pace}"
    return f"open loop, {design.arrival} arrivals at {design.rate_per_s:g} requests/s"


def goals_text(design: Design) -> str:
    """What makes a request a good one."""
    return ", ".join(f"{goal.metric} <= {goal.most_ms:g} ms" for goal in design.goals)


def warm_up_lines(records: Iterable[RequestRecord]) -> tuple[str, ...]:
    """First and last TTFT of the excluded warm-up, per arm and tier."""
    groups: dict[tuple[str, str], list[RequestRecord]] = defaultdict(list)
    for record in records:
        if record.phase == "warm-up":
            groups[record.tier, record.arm].append(record)
    lines = []
    for (tier, arm), group in groups.items():
        times = [f"{record.ttft_s * 1e3:.0f} ms" for record in group if record.ttft_s is not None]
        lines.append(f"{tier} {arm}: TTFT {', '.join(times) or 'none'}")
    return tuple(lines)


def _tier(
    design: Design,
    tier: Tier,
    all_records: Sequence[RequestRecord],
    red: Sequence[Gate],
    judged: Judged,
) -> TierResult:
    records = latest_attempts(all_records, tier.name)
    blocks = paired_blocks(records, design)
    pairs = [pair for block in blocks.values() for pair in block]
    noise = _noise(design, latest_attempts(all_records, tier.name, "a/a"))
    repeats = repeated(all_records, records, tier.name)
    gates = (
        *tier_gates(records, pairs, design.output_tokens, repeats),
        *_noise_gate(design, noise),
    )
    failed = [*red, *(gate for gate in gates if gate.state == "failed")]
    counted = [record.prompt_tokens or 0 for pair in pairs for record in pair]
    return TierResult(
        tier=tier.name,
        pairs_done=len(blocks),
        pairs_planned=design.pairs,
        prompts=len(pairs),
        prompt_tokens=(min(counted), max(counted)) if counted else None,
        text_agreement=_agreement(pairs),
        gates=gates,
        metrics=_metrics(design, tuple(blocks.values()), failed, noise),
        noise=noise,
        drift=drift_lines(tuple(blocks.values())),
        quantiles=_quantiles(design, tuple(blocks.values()), () if failed else judged),
    )


def _quantiles(
    design: Design, blocks: Sequence[BlockPair], judged: Judged
) -> tuple[QuantileResult, ...]:
    return tuple(
        result
        for metric in metrics_of(design)
        if is_latency(metric)
        for result in quantile_results(
            metric,
            [tuple(samples_s(metric, side_of(b, side)) for side in (0, 1)) for b in blocks],  # type: ignore[misc]
            level=_level(design),
            judged=[statistic for name, statistic in judged if name == metric.name],
        )
    )


def _level(design: Design) -> float:
    """Of one interval, so that the confidence holds for all tiers together."""
    return 1.0 - (1.0 - design.confidence) / len(design.tiers)


def _metrics(
    design: Design,
    blocks: Sequence[BlockPair],
    failed: Sequence[Gate],
    noise: Sequence[MetricResult],
) -> tuple[MetricResult, ...]:
    if failed:
        return tuple(_void(design, metric, blocks, failed[0]) for metric in metrics_of(design))
    results = tuple(
        _judged(design, metric, blocks, _level(design)) for metric in metrics_of(design)
    )
    if not noise:
        return results
    return tuple(starmap(_beyond_noise, zip(results, noise, strict=True)))


def _noise(design: Design, records: Sequence[RequestRecord]) -> tuple[MetricResult, ...]:
    """The baseline against itself. Stricter than the verdict: one alarm would void the tier."""
    blocks = tuple(paired_blocks(records, design).values())
    if not blocks:
        return ()
    level = 1.0 - (1.0 - design.confidence) / (len(design.tiers) * len(metrics_of(design)))
    return tuple(_judged(design, metric, blocks, level) for metric in metrics_of(design))


def _noise_gate(design: Design, noise: Sequence[MetricResult]) -> tuple[Gate, ...]:
    if not design.aa_pairs:
        return ()
    pairs = noise[0].blocks if noise else 0
    if pairs < MINIMUM_PAIRS:
        evidence = f"the A/A phase has {pairs} finished pairs, it needs {MINIMUM_PAIRS}"
        return (Gate(name="baseline equals itself", state="not checked", evidence=evidence),)
    changes = {result.metric.title: result.change_pct or 0.0 for result in noise}
    different = [r.metric.title for r in noise if r.verdict.kind in ("faster", "slower")]
    shown = ", ".join(f"{title} {change:+.1f} %" for title, change in changes.items())
    problem = f"A/A differs in {', '.join(different)}: {shown}" if different else ""
    return (gate("baseline equals itself", problem, f"A/A: {shown}"),)


def _beyond_noise(result: MetricResult, noise: MetricResult) -> MetricResult:
    """A change no larger than what the baseline shows against itself decides nothing."""
    if result.verdict.kind not in ("faster", "slower") or not result.ratio or not noise.ratio:
        return result
    if abs(math.log(result.ratio)) > abs(math.log(noise.ratio)):
        return result
    text = (
        f"inconclusive: within the noise of the baseline against itself ({noise.change_pct:+.1f} %)"
    )
    return replace(result, verdict=Verdict(kind="inconclusive", text=text))


def drift_lines(blocks: Sequence[BlockPair]) -> tuple[str, ...]:
    """Arms whose E2EL moved over the run beyond chance, by the Theil-Sen slope of its logarithm."""
    from scipy import stats

    if len(blocks) < MINIMUM_PAIRS:
        return ()
    lines = []
    for side, arm in enumerate(ARMS):
        logs = [math.log(positive(mean(samples_s(E2EL, side_of(b, side))))) for b in blocks]
        slope = stats.theilslopes(logs)
        low, high = float(slope.low_slope), float(slope.high_slope)
        if low > 0 or high < 0:
            change = math.expm1(float(slope.slope) * (len(blocks) - 1)) * 100
            lines.append(f"drift: {arm} E2EL {change:+.1f} % from the first to the last block")
    return tuple(lines)


def _agreement(pairs: Sequence[Pair]) -> float | None:
    if not pairs:
        return None
    return mean([float(first.text_sha256 == second.text_sha256) for first, second in pairs])


def _void(
    design: Design, metric: Metric, blocks: Sequence[BlockPair], failed: Gate
) -> MetricResult:
    """No ratio at all: a red gate."""
    reason = f"not comparable: {failed.name}: {failed.evidence}"
    return MetricResult(
        metric=metric,
        blocks=len(blocks),
        baseline=typical(metric, blocks, 0, design.goals),
        candidate=typical(metric, blocks, 1, design.goals),
        ratio=None,
        interval=None,
        verdict=Verdict(kind="not comparable", text=reason),
    )


def _judged(
    design: Design, metric: Metric, blocks: Sequence[BlockPair], level: float
) -> MetricResult:
    logs = [log_ratio(metric, block, design.goals) for block in blocks]
    interval = interval_of_mean(logs, level) if len(logs) >= MINIMUM_PAIRS else None
    verdict, more = judge(logs, interval, better=metric.better, margin=design.margin)
    return MetricResult(
        metric=metric,
        blocks=len(blocks),
        baseline=typical(metric, blocks, 0, design.goals),
        candidate=typical(metric, blocks, 1, design.goals),
        ratio=math.exp(mean(logs)) if logs else None,
        interval=None if interval is None else _exponentials(interval),
        verdict=verdict,
        more_blocks=more,
    )


def _exponentials(interval: tuple[float, float]) -> tuple[float, float]:
    return math.exp(interval[0]), math.exp(interval[1])
