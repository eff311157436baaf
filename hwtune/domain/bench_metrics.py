"""What is measured, by name and formula. Names and formulas are those of ``vllm bench serve``
unless the formula says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A measured quantity."""

    name: str
    title: str
    unit: str
    better: Literal["lower", "higher"]
    formula: str


TTFT = Metric(
    name="ttft",
    title="TTFT",
    unit="ms",
    better="lower",
    formula="first chunk that carries a token - request written",
)
TPOT = Metric(
    name="tpot",
    title="TPOT",
    unit="ms",
    better="lower",
    formula="(E2EL - TTFT) / (output tokens - 1)",
)
ITL = Metric(
    name="itl",
    title="ITL",
    unit="ms",
    better="lower",
    formula="gap between two chunks / tokens of the later one, over all tokens of all requests",
)
E2EL = Metric(
    name="e2el",
    title="E2EL",
    unit="ms",
    better="lower",
    formula="last chunk that carries a token - request written",
)
TTFT_DUE = Metric(
    name="ttft_due",
    title="TTFT from schedule",
    unit="ms",
    better="lower",
    formula="first chunk that carries a token - scheduled time (open loop)",
)
E2EL_DUE = Metric(
    name="e2el_due",
    title="E2EL from schedule",
    unit="ms",
    better="lower",
    formula="last chunk that carries a token - scheduled time (open loop)",
)
OUTPUT_THROUGHPUT = Metric(
    name="output_throughput",
    title="output throughput",
    unit="tok/s",
    better="higher",
    formula="output tokens of a block / (last end - first start)",
)
TOTAL_THROUGHPUT = Metric(
    name="total_token_throughput",
    title="total token throughput",
    unit="tok/s",
    better="higher",
    formula="input and output tokens of a block / (last end - first start)",
)
REQUEST_THROUGHPUT = Metric(
    name="request_throughput",
    title="request throughput",
    unit="req/s",
    better="higher",
    formula="requests of a block / (last end - first start)",
)
GOODPUT = Metric(
    name="goodput",
    title="goodput",
    unit="req/s",
    better="higher",
    formula="requests of a block that meet every goal / (last end - first start)",
)

LATENCIES: Final = (TTFT, TPOT, ITL, E2EL)
FROM_SCHEDULE: Final = (TTFT_DUE, E2EL_DUE)
THROUGHPUTS: Final = (OUTPUT_THROUGHPUT, TOTAL_THROUGHPUT, REQUEST_THROUGHPUT)
METRICS: Final = (*LATENCIES, *FROM_SCHEDULE, *THROUGHPUTS, GOODPUT)
"""Every metric there is; which of them a run has follows from its design."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One service level that a good request meets, as ``--goodput`` of vLLM's client means it."""

    metric: Literal["ttft", "tpot", "e2el"]
    most_ms: float
