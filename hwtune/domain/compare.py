"""Records in, judged comparison out."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import starmap

from hwtune.domain.bench import (
    ARMS,
    E2EL,
    METRICS,
    OUTPUT_THROUGHPUT,
    TPOT,
    TTFT,
    Comparison,
    Gate,
    Metric,
    MetricResult,
    Phase,
    RequestRecord,
    TierResult,
    Verdict,
)
from hwtune.domain.stats import interval_of_mean, judge, mean, median
from hwtune.domain.validity import Pair, gate, tier_gates, unusable
from hwtune.domain.workload import MINIMUM_PAIRS, Design, Tier, check_levels, prompts_in_pair

BlockPair = tuple[Pair, ...]
"""All prompts of one pair of blocks."""

_LATENCIES: dict[str, Callable[[RequestRecord], float | None]] = {
    TTFT.name: lambda record: record.ttft_s,
    TPOT.name: lambda record: record.tpot_s,
    E2EL.name: lambda record: record.e2el_s,
}


def compare(
    design: Design,
    records: Iterable[RequestRecord],
    run_gates: Sequence[Gate],
    notes: Sequence[str] = (),
) -> Comparison:
    """Judges every metric in every tier. A red gate of the run or tier voids its metrics.

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
        tiers=tuple(_tier(design, tier, records, red) for tier in design.tiers),
        warm_up=warm_up_lines(records),
        notes=tuple(notes),
    )


def _conditions(design: Design) -> dict[str, str]:
    return {
        "profile": design.profile or "given urls",
        "mode": design.mode,
        "concurrency": str(design.concurrency),
        "output tokens": f"{design.output_tokens}, fixed (ignore_eos)",
        "order": f"random ABBA/BAAB blocks, seed {design.seed}",
        "noise floor": f"{design.aa_pairs} A/A blocks"
        if design.aa_pairs
        else "not measured (--aa)",
        "warm-up": f"{design.warm_up} request(s) per arm and tier, excluded",
        "vLLM flags": " ".join(design.flags) or "none",
    }


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


def latest_attempts(
    records: Iterable[RequestRecord], tier: str, phase: Phase = "measured"
) -> list[RequestRecord]:
    """Records of a tier's phase without those that a later attempt at the pair replaces."""
    mine = [record for record in records if record.phase == phase and record.tier == tier]
    latest: dict[int, int] = {}
    for record in mine:
        latest[record.pair] = max(latest.get(record.pair, 0), record.attempt)
    return [record for record in mine if record.attempt == latest[record.pair]]


def paired_blocks(records: Iterable[RequestRecord], design: Design) -> dict[int, BlockPair]:
    """Pairs of blocks in which both arms answered every prompt, by pair number."""
    cells: dict[tuple[int, int], dict[str, RequestRecord]] = defaultdict(dict)
    for record in records:
        if record.failure is None and not unusable(record):
            cells[record.pair, record.prompt][record.arm] = record
    blocks: dict[int, list[Pair]] = defaultdict(list)
    for (pair, _), cell in sorted(cells.items()):
        if len(cell) == len(ARMS):
            blocks[pair].append((cell["baseline"], cell["candidate"]))
    return {
        pair: tuple(block)
        for pair, block in blocks.items()
        if len(block) == prompts_in_pair(design, pair)
    }


def _tier(
    design: Design, tier: Tier, all_records: Sequence[RequestRecord], red: Sequence[Gate]
) -> TierResult:
    records = latest_attempts(all_records, tier.name)
    blocks = paired_blocks(records, design)
    pairs = [pair for block in blocks.values() for pair in block]
    noise = _noise(design, latest_attempts(all_records, tier.name, "a/a"))
    gates = (*tier_gates(records, pairs, design.output_tokens), *_noise_gate(design, noise))
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
    )


def _metrics(
    design: Design,
    blocks: Sequence[BlockPair],
    failed: Sequence[Gate],
    noise: Sequence[MetricResult],
) -> tuple[MetricResult, ...]:
    if failed:
        return tuple(_void(metric, blocks, failed[0]) for metric in METRICS)
    level = 1.0 - (1.0 - design.confidence) / len(design.tiers)
    results = tuple(_judged(design, metric, blocks, level) for metric in METRICS)
    if not noise:
        return results
    return tuple(starmap(_beyond_noise, zip(results, noise, strict=True)))


def _noise(design: Design, records: Sequence[RequestRecord]) -> tuple[MetricResult, ...]:
    """The baseline against itself. Stricter than the verdict: one alarm would void the tier."""
    blocks = tuple(paired_blocks(records, design).values())
    if not blocks:
        return ()
    level = 1.0 - (1.0 - design.confidence) / (len(design.tiers) * len(METRICS))
    return tuple(_judged(design, metric, blocks, level) for metric in METRICS)


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
        logs = [math.log(_positive(mean([_seconds(E2EL, p[side]) for p in b]))) for b in blocks]
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


def _void(metric: Metric, blocks: Sequence[BlockPair], failed: Gate) -> MetricResult:
    """No ratio at all: a red gate."""
    reason = f"not comparable: {failed.name}: {failed.evidence}"
    return MetricResult(
        metric=metric,
        blocks=len(blocks),
        baseline=_typical(metric, blocks, 0),
        candidate=_typical(metric, blocks, 1),
        ratio=None,
        interval=None,
        verdict=Verdict(kind="not comparable", text=reason),
    )


def _judged(
    design: Design, metric: Metric, blocks: Sequence[BlockPair], level: float
) -> MetricResult:
    logs = [log_ratio(metric, block) for block in blocks]
    interval = interval_of_mean(logs, level) if len(logs) >= MINIMUM_PAIRS else None
    verdict, more = judge(logs, interval, better=metric.better, margin=design.margin)
    return MetricResult(
        metric=metric,
        blocks=len(blocks),
        baseline=_typical(metric, blocks, 0),
        candidate=_typical(metric, blocks, 1),
        ratio=math.exp(mean(logs)) if logs else None,
        interval=None if interval is None else _exponentials(interval),
        verdict=verdict,
        more_blocks=more,
    )


def _exponentials(interval: tuple[float, float]) -> tuple[float, float]:
    return math.exp(interval[0]), math.exp(interval[1])


def log_ratio(metric: Metric, block: BlockPair) -> float:
    """log(candidate / baseline) of one pair of blocks: of mean latencies, or of throughputs.

    Both means run over the same prompts. A mean of logarithms would be ruled by a single answer
    whose tokens happened to be read all at once (TPOT 0).
    """
    if metric.name not in _LATENCIES:
        return math.log(_throughput(metric, block, 1) / _throughput(metric, block, 0))
    baseline, candidate = (
        mean([_seconds(metric, pair[side]) for pair in block]) for side in (0, 1)
    )
    return math.log(_positive(candidate) / _positive(baseline))


def _seconds(metric: Metric, record: RequestRecord) -> float:
    """A latency of a usable record; others never reach a pair."""
    value = _LATENCIES[metric.name](record)
    if value is None:
        message = f"{metric.title} of a record that has none"
        raise ValueError(message)
    return value


def _positive(seconds: float) -> float:
    """A logarithm needs more than nothing: no less than a microsecond, which is below every read."""
    return max(seconds, 1e-6)


def _throughput(metric: Metric, block: BlockPair, side: int) -> float:
    records = [pair[side] for pair in block]
    first = min(record.started_unix_s for record in records)
    last = max(record.ended_unix_s for record in records)
    amount = len(records)
    if metric == OUTPUT_THROUGHPUT:
        amount = sum(record.output_tokens or 0 for record in records)
    return amount / _positive(last - first)


def _typical(metric: Metric, blocks: Sequence[BlockPair], side: int) -> float | None:
    """Median over requests in ms, or over blocks in units per second."""
    if metric.name not in _LATENCIES:
        return median([_throughput(metric, block, side) for block in blocks])
    values = [_positive(_seconds(metric, pair[side])) * 1e3 for block in blocks for pair in block]
    return median(values)
