"""From the records of a pair of blocks to the value of each metric. Latencies in seconds here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hwtune.domain.bench import RequestRecord
from hwtune.domain.bench_metrics import (
    E2EL,
    E2EL_DUE,
    FROM_SCHEDULE,
    GOODPUT,
    ITL,
    LATENCIES,
    OUTPUT_THROUGHPUT,
    REQUEST_THROUGHPUT,
    THROUGHPUTS,
    TOTAL_THROUGHPUT,
    TPOT,
    TTFT,
    TTFT_DUE,
    Goal,
    Metric,
)
from hwtune.domain.pairing import BlockPair
from hwtune.domain.stats import mean, median
from hwtune.domain.workload import Design


def metrics_of(design: Design) -> tuple[Metric, ...]:
    """What a run of this design measures."""
    scheduled = FROM_SCHEDULE if design.arrival != "closed" else ()
    goodput = (GOODPUT,) if design.goals else ()
    return (*LATENCIES, *scheduled, *THROUGHPUTS, *goodput)


def itls_s(record: RequestRecord) -> list[float]:
    """The gap before each token after the first chunk: what a chunk waited, over its tokens.

    Where the server does not tell how many tokens a chunk carries, all chunks carry alike. An answer
    in one chunk made nobody wait for a further token: 0, as its TPOT is.
    """
    times, counts = record.chunk_times_s, record.chunk_tokens
    if len(times) == 1:
        return [0.0]
    even = (record.output_tokens or 0) / max(len(times), 1)
    gaps: list[float] = []
    for index in range(1, len(times)):
        tokens = counts[index] if counts else even
        gap = (times[index] - times[index - 1]) / max(tokens, 1)
        gaps.extend([gap] * max(1, round(tokens)))
    return gaps


def _after_due(value: float | None, record: RequestRecord) -> list[float]:
    return [] if value is None else [value + record.late_s]


def _known(value: float | None) -> list[float]:
    return [] if value is None else [value]


_READ: dict[str, Callable[[RequestRecord], list[float]]] = {
    TTFT.name: lambda record: _known(record.ttft_s),
    TPOT.name: lambda record: _known(record.tpot_s),
    ITL.name: itls_s,
    E2EL.name: lambda record: _known(record.e2el_s),
    TTFT_DUE.name: lambda record: _after_due(record.ttft_s, record),
    E2EL_DUE.name: lambda record: _after_due(record.e2el_s, record),
}


def is_latency(metric: Metric) -> bool:
    """Whether it is a time of requests rather than a rate of blocks."""
    return metric.name in _READ


def samples_s(metric: Metric, records: Sequence[RequestRecord]) -> list[float]:
    """Every sample of a latency: one per request, of ITL one per token.

    Raises:
        ValueError: usable records hold none.
    """
    found = [value for record in records for value in _READ[metric.name](record)]
    if not found:
        message = f"{metric.title} of records that have none"
        raise ValueError(message)
    return found


def side_of(block: BlockPair, side: int) -> list[RequestRecord]:
    """One arm's records of a pair of blocks."""
    return [pair[side] for pair in block]


def log_ratio(metric: Metric, block: BlockPair, goals: Sequence[Goal] = ()) -> float:
    """log(candidate / baseline) of one pair of blocks: of mean latencies, or of throughputs.

    Both means run over the same prompts. A mean of logarithms would be ruled by a single answer
    whose tokens happened to be read all at once (TPOT 0).
    """
    if not is_latency(metric):
        values = [rate(metric, side_of(block, side), goals) for side in (0, 1)]
    else:
        values = [positive(mean(samples_s(metric, side_of(block, side)))) for side in (0, 1)]
    return math.log(values[1] / values[0])


def positive(seconds: float) -> float:
    """A logarithm needs more than nothing: no less than a microsecond, which is below every read."""
    return max(seconds, 1e-6)


def rate(metric: Metric, records: Sequence[RequestRecord], goals: Sequence[Goal] = ()) -> float:
    """Tokens or requests per second of one arm's block.

    A block without a good request counts as half of one, so that a ratio exists.
    """
    first = min(record.started_unix_s for record in records)
    last = max(record.ended_unix_s for record in records)
    return _amount(metric, records, goals) / positive(last - first)


def _amount(metric: Metric, records: Sequence[RequestRecord], goals: Sequence[Goal]) -> float:
    outputs = sum(record.output_tokens or 0 for record in records)
    if metric == OUTPUT_THROUGHPUT:
        return outputs
    if metric == TOTAL_THROUGHPUT:
        return outputs + sum(record.prompt_tokens or 0 for record in records)
    if metric == REQUEST_THROUGHPUT:
        return len(records)
    return max(0.5, sum(is_good(record, goals) for record in records))


def is_good(record: RequestRecord, goals: Sequence[Goal]) -> bool:
    """Whether a request meets every goal, as ``vllm bench serve --goodput`` counts it."""
    values = {"ttft": record.ttft_s, "tpot": record.tpot_s, "e2el": record.e2el_s}
    return all((values[goal.metric] or 0.0) * 1e3 <= goal.most_ms for goal in goals)


def typical(
    metric: Metric, blocks: Sequence[BlockPair], side: int, goals: Sequence[Goal] = ()
) -> float | None:
    """Median over requests (of ITL over tokens) in ms, or over blocks in units per second."""
    if not blocks:
        return None
    if not is_latency(metric):
        return median([rate(metric, side_of(block, side), goals) for block in blocks])
    values = samples_s(metric, [record for block in blocks for record in side_of(block, side)])
    return (median([positive(value) for value in values]) or 0.0) * 1e3
