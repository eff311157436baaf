"""Records in, judged comparison out."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

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
    RequestRecord,
    TierResult,
    Verdict,
)
from hwtune.domain.stats import interval_of_mean, judge, mean, median
from hwtune.domain.validity import Pair, tier_gates
from hwtune.domain.workload import MINIMUM_PAIRS, Design, Tier, prompts_in_pair

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
    """Judges every metric in every tier. A red gate of the run or tier voids its metrics."""
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


def latest_attempts(records: Iterable[RequestRecord], tier: str) -> list[RequestRecord]:
    """Measured records of a tier without those that a later attempt at the pair replaces."""
    measured = [record for record in records if record.phase == "measured" and record.tier == tier]
    latest: dict[int, int] = {}
    for record in measured:
        latest[record.pair] = max(latest.get(record.pair, 0), record.attempt)
    return [record for record in measured if record.attempt == latest[record.pair]]


def paired_blocks(records: Iterable[RequestRecord], design: Design) -> dict[int, BlockPair]:
    """Pairs of blocks in which both arms answered every prompt, by pair number."""
    cells: dict[tuple[int, int], dict[str, RequestRecord]] = defaultdict(dict)
    for record in records:
        if record.failure is None:
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
    gates = tier_gates(records, pairs, design.output_tokens)
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
        metrics=tuple(
            _metric(design, metric, tuple(blocks.values()), records, failed) for metric in METRICS
        ),
    )


def _agreement(pairs: Sequence[Pair]) -> float | None:
    if not pairs:
        return None
    return mean([float(first.text_sha256 == second.text_sha256) for first, second in pairs])


def _metric(
    design: Design,
    metric: Metric,
    blocks: Sequence[BlockPair],
    records: Sequence[RequestRecord],
    failed: Sequence[Gate],
) -> MetricResult:
    baseline, candidate = (_typical(metric, blocks, side) for side in (0, 1))
    if failed:
        reason = f"not comparable: {failed[0].name}: {failed[0].evidence}"
        verdict = Verdict(kind="not comparable", text=reason)
        ratio = interval = more = None
    else:
        logs = [log_ratio(metric, block) for block in blocks]
        level = 1.0 - (1.0 - design.confidence) / len(design.tiers)
        log_interval = interval_of_mean(logs, level) if len(logs) >= MINIMUM_PAIRS else None
        verdict, more = judge(logs, log_interval, better=metric.better, margin=design.margin)
        ratio = math.exp(mean(logs)) if logs else None
        interval = None if log_interval is None else _exponentials(log_interval)
    return MetricResult(
        metric=metric,
        blocks=len(blocks),
        baseline=baseline,
        candidate=candidate,
        ratio=ratio,
        interval=interval,
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
    read = _LATENCIES.get(metric.name)
    if read is None:
        return math.log(_throughput(metric, block, 1) / _throughput(metric, block, 0))
    baseline, candidate = (mean([read(pair[side]) or 0.0 for pair in block]) for side in (0, 1))
    return math.log(_positive(candidate) / _positive(baseline))


def _positive(seconds: float | None) -> float:
    """A logarithm needs more than nothing: no less than a microsecond, which is below every read."""
    return max(seconds or 0.0, 1e-6)


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
    read = _LATENCIES.get(metric.name)
    if read is None:
        return median([_throughput(metric, block, side) for block in blocks])
    values = [_positive(read(pair[side])) * 1e3 for block in blocks for pair in block]
    return median(values)
