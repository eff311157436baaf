"""What one request and one comparison of serving speed consist of.

All times are seconds on one monotonic clock, counted from the moment the request was written to
an open connection. Scope: serving, end to end. A kernel's own time never appears here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from hwtune.domain.bench_metrics import Metric
from hwtune.domain.launch import Arm

SCOPE: Final = "serving"
COMPARISON_SCHEMA_VERSION: Final = 1
ARMS: Final[tuple[Arm, Arm]] = ("baseline", "candidate")

Phase = Literal["warm-up", "a/a", "measured", "repeat"]

FailureReason = Literal[
    "connect error",
    "http status",
    "error body",
    "error event",
    "truncated stream",
    "missing usage",
    "zero tokens",
    "wrong length",
    "wrong model",
    "timeout",
    "malformed response",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One finished request. A failed one has no times: it can never look fast."""

    arm: Arm
    phase: Phase
    tier: str
    pair: int
    """Which pair of blocks (one per arm, same prompts) inside the tier, from 0."""
    attempt: int = 0
    """Counts up when an interrupted pair is measured again; only the last attempt counts."""
    prompt: int
    """Which prompt of the pair, from 0."""
    prompt_id: str
    """Hash of the token ids sent: equal in both arms, or the pair is void."""
    started_unix_s: float
    ended_unix_s: float
    server: int = 0
    """Which of the arm's endpoints answered, from 0."""
    late_s: float = 0.0
    """Open loop: how long after its scheduled time the request was written."""
    client_late_s: float = 0.0
    """Longest stretch in which the client was not given the processor to read its socket."""
    ttft_s: float | None = None
    """To the first chunk that carries a token. An early role-only chunk is not one."""
    e2el_s: float | None = None
    """To the last chunk that carries a token."""
    prompt_tokens: int | None = None
    """From the server's usage."""
    output_tokens: int | None = None
    """From the server's usage."""
    asked_tokens: int | None = None
    """Output tokens that were asked for."""
    chunk_times_s: tuple[float, ...] = ()
    """Arrival of each chunk that carries a token; a chunk may carry several."""
    chunk_tokens: tuple[int, ...] = ()
    """Tokens in each of these chunks as the server counted them; empty: one each, or not told."""
    cached_tokens: int | None = None
    """Prompt tokens that the server took from its prefix cache, where its usage tells."""
    text: str = ""
    text_sha256: str = ""
    finish_reason: str | None = None
    failure: FailureReason | None = None
    detail: str = ""
    """What the server or the socket said when the request failed."""

    @property
    def damage(self) -> str:
        """What an answered request lacks or cannot have; empty when it is whole or failed."""
        if self.failure is not None:
            return ""
        times = {"ttft_s": self.ttft_s, "e2el_s": self.e2el_s}
        times |= {f"chunk_times_s[{n}]": time for n, time in enumerate(self.chunk_times_s)}
        times["ended_unix_s - started_unix_s"] = self.ended_unix_s - self.started_unix_s
        wrong = [f"{name} is {time}" for name, time in times.items() if not _is_duration(time)]
        if not self.chunk_times_s:
            wrong.append("chunk_times_s is empty")
        if not wrong and (self.e2el_s or 0.0) < (self.ttft_s or 0.0):
            wrong.append("e2el_s is below ttft_s")
        if self.output_tokens is None or self.output_tokens < 1:
            wrong.append(f"output_tokens is {self.output_tokens}")
        return wrong[0] if wrong else ""

    @property
    def tpot_s(self) -> float | None:
        """(E2EL - TTFT) / (output tokens - 1); None with fewer than two tokens."""
        if self.ttft_s is None or self.e2el_s is None or not self.output_tokens:
            return None
        if self.output_tokens < 2:
            return None
        return (self.e2el_s - self.ttft_s) / (self.output_tokens - 1)


def _is_duration(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0.0


VerdictKind = Literal["faster", "slower", "same", "inconclusive", "not comparable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One of five answers, and the sentence that says it."""

    kind: VerdictKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One condition of a valid comparison, with its evidence."""

    name: str
    state: Literal["passed", "failed", "not checked"]
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmProof:
    """What the marker check said about one arm's server."""

    arm: Arm
    passed: bool | None
    """None: nothing could be checked (a server that hwtune did not start)."""
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricResult:
    """One metric in one tier."""

    metric: Metric
    blocks: int
    """Pairs of blocks that the interval is taken over."""
    baseline: float | None
    """Median over requests (latencies, ms) or blocks (throughputs)."""
    candidate: float | None
    ratio: float | None
    """candidate / baseline, geometric mean of the paired ratios; None when not comparable."""
    interval: tuple[float, float] | None
    """Confidence interval of the ratio."""
    verdict: Verdict
    more_blocks: int | None = None
    """Further pairs of blocks that would probably decide an inconclusive metric."""

    @property
    def change_pct(self) -> float | None:
        """(ratio - 1) x 100."""
        return None if self.ratio is None else (self.ratio - 1.0) * 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileResult:
    """One quantile of one latency in one tier, over all requests (of ITL over all tokens)."""

    metric: Metric
    statistic: str
    """``p50`` and so on, interpolated as numpy does by default."""
    baseline: float
    candidate: float
    ratio: float | None
    """candidate / baseline; None unless it was asked for and may be stated."""
    interval: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TierResult:
    """One context tier: metrics, gates, and the conditions they hold under."""

    tier: str
    pairs_done: int
    pairs_planned: int
    prompts: int
    """Prompts that both arms answered."""
    prompt_tokens: tuple[int, int] | None
    """Least and most prompt tokens the server counted."""
    text_agreement: float | None
    """Share of prompts with the same text in both arms. BF16 reductions may differ legitimately."""
    gates: tuple[Gate, ...]
    metrics: tuple[MetricResult, ...]
    noise: tuple[MetricResult, ...] = ()
    """The baseline against itself, when an A/A phase was run."""
    drift: tuple[str, ...] = ()
    """Trends over the run, one line per arm that has one."""
    quantiles: tuple[QuantileResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Baseline against candidate, judged."""

    schema_version: int = COMPARISON_SCHEMA_VERSION
    scope: str = SCOPE
    model: str
    confidence: float
    """Joint over the tiers, per metric: each interval is wider by Bonferroni's rule."""
    margin: float
    """Equivalence margin: a ratio within 1/(1+margin)..1+margin is the same."""
    unit: str = "blocks"
    """What the intervals are taken over."""
    conditions: dict[str, str]
    gates: tuple[Gate, ...]
    """Those that concern the whole run."""
    tiers: tuple[TierResult, ...]
    warm_up: tuple[str, ...] = ()
    """What the excluded warm-up showed, one line per arm and tier."""
    notes: tuple[str, ...] = ()

    @property
    def red_gates(self) -> tuple[Gate, ...]:
        """Every failed gate of the run and its tiers."""
        gates = [*self.gates, *(gate for tier in self.tiers for gate in tier.gates)]
        return tuple(gate for gate in gates if gate.state == "failed")

    @property
    def answer_is_no(self) -> bool:
        """Slower somewhere, or not comparable."""
        kinds = {result.verdict.kind for tier in self.tiers for result in tier.metrics}
        return bool(kinds & {"slower", "not comparable"}) or bool(self.red_gates)
