"""Result files of others, judged by the same rules as far as they carry evidence.

Two saved runs were made one after the other: a drift between them looks like a difference. That is
said with every verdict; only an interleaved run excludes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hwtune.domain.bench import (
    Comparison,
    Gate,
    MetricResult,
    TierResult,
    Verdict,
)
from hwtune.domain.bench_metrics import E2EL, OUTPUT_THROUGHPUT, TPOT, TTFT, Metric
from hwtune.domain.outputs import output_gates
from hwtune.domain.stats import interval_of_mean, judge, mean, median
from hwtune.domain.validity import checked, gate
from hwtune.domain.workload import MINIMUM_PAIRS, check_levels

SEQUENTIAL = "the runs were made one after the other, so a drift between them is not excluded"
_OUTLIER_FACTOR = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRequest:
    """One request of a saved run."""

    input_tokens: int
    output_tokens: int
    ttft_s: float
    e2el_s: float
    text: str | None
    error: str

    @property
    def tpot_s(self) -> float:
        """(E2EL - TTFT) / (output tokens - 1); 0 with fewer than two tokens."""
        return (
            (self.e2el_s - self.ttft_s) / (self.output_tokens - 1) if self.output_tokens > 1 else 0
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRun:
    """One result file: one workload on one server."""

    source: str
    sha256: str
    workload: dict[str, object]
    """Model, concurrency, request rate: must be equal in both."""
    requests: tuple[SavedRequest, ...]
    output_throughput: float


_LATENCIES: tuple[tuple[Metric, Callable[[SavedRequest], float]], ...] = (
    (TTFT, lambda request: request.ttft_s),
    (TPOT, lambda request: request.tpot_s),
    (E2EL, lambda request: request.e2el_s),
)

Pair = tuple[SavedRequest, SavedRequest]


def compare_saved(
    runs: Sequence[tuple[str, SavedRun, SavedRun]],
    *,
    margin: float,
    confidence: float,
    notes: Sequence[str] = (),
) -> Comparison:
    """Judges pairs of saved runs, one per tier: (tier, baseline, candidate).

    Raises:
        UsageError: the margin or the confidence is out of range.
    """
    check_levels(margin, confidence)
    level = 1.0 - (1.0 - confidence) / len(runs)
    tiers = tuple(_tier(name, first, second, margin, level) for name, first, second in runs)
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


def _tier(name: str, first: SavedRun, second: SavedRun, margin: float, level: float) -> TierResult:
    pairs = tuple(zip(first.requests, second.requests, strict=False))
    gates = saved_gates(first, second)
    red = [gate for gate in gates if gate.state == "failed"]
    texts = _texts(pairs)
    counted = [request.input_tokens for pair in pairs for request in pair]
    return TierResult(
        tier=name,
        pairs_done=len(pairs),
        pairs_planned=max(len(first.requests), len(second.requests)),
        prompts=len(pairs),
        prompt_tokens=(min(counted), max(counted)) if counted else None,
        text_agreement=mean([float(a == b) for a, b in texts]) if texts else None,
        gates=gates,
        metrics=(
            *(_latency(metric, read, pairs, red, margin, level) for metric, read in _LATENCIES),
            _throughput(first, second, red),
        ),
        drift=_outliers(pairs) if not red else (),
    )


def saved_gates(first: SavedRun, second: SavedRun) -> tuple[Gate, ...]:
    """What two result files can prove or disprove."""
    both = zip(first.requests, second.requests, strict=False)
    pairs = [(a, b) for a, b in both if not (a.error or b.error)]
    return (
        _different_files(first, second),
        _no_failure(first, second),
        _same_workload(first, second),
        _same_inputs(first, second),
        *output_gates(_texts(pairs), [a.output_tokens for a, _ in _with_texts(pairs)]),
        _same_lengths(pairs),
    )


def _with_texts(pairs: Sequence[Pair]) -> list[Pair]:
    return [(a, b) for a, b in pairs if a.text is not None and b.text is not None]


def _texts(pairs: Sequence[Pair]) -> list[tuple[str, str]]:
    return [(a.text or "", b.text or "") for a, b in _with_texts(pairs)]


def _different_files(first: SavedRun, second: SavedRun) -> Gate:
    same = "both are the same file: nothing to compare" if first.sha256 == second.sha256 else ""
    return gate("two runs", same, "different files")


def _no_failure(first: SavedRun, second: SavedRun) -> Gate:
    parts = []
    for arm, run in (("baseline", first), ("candidate", second)):
        failed = [request for request in run.requests if request.error]
        if failed or not run.requests:
            reason = failed[0].error if failed else "the file holds no request"
            parts.append(f"{arm}: {len(failed)} of {len(run.requests)} requests failed ({reason})")
    total = len(first.requests) + len(second.requests)
    return gate("no failed request", "; ".join(parts), f"0 of {total} failed")


def _same_workload(first: SavedRun, second: SavedRun) -> Gate:
    problems = [
        f"{key} {value!r} / {second.workload.get(key)!r}"
        for key, value in first.workload.items()
        if value != second.workload.get(key)
    ]
    shown = ", ".join(f"{key} {value}" for key, value in first.workload.items())
    return gate("same workload", "; ".join(problems), shown)


def _same_inputs(first: SavedRun, second: SavedRun) -> Gate:
    lengths = [[r.input_tokens for r in run.requests if not r.error] for run in (first, second)]
    problem = ""
    if lengths[0] != lengths[1]:
        problem = f"prompts differ: {sum(lengths[0])} / {sum(lengths[1])} input tokens in all"
    shown = f"equal in {len(lengths[0])} prompts"
    return checked("equal input tokens", problem, shown, len(lengths[0]))


def _same_lengths(pairs: Sequence[Pair]) -> Gate:
    """Red for whole answers only: TTFT and TPOT do not depend on the length of the answer."""
    differing = sum(a.output_tokens != b.output_tokens for a, b in pairs)
    problem = ""
    if differing:
        totals = [sum(pair[side].output_tokens for pair in pairs) for side in (0, 1)]
        problem = (
            f"output tokens differ in {differing} of {len(pairs)} prompts ({totals[0]} /"
            f" {totals[1]}): E2EL and throughput compare different work; use ignore_eos"
        )
    return checked(_LENGTHS, problem, f"equal in {len(pairs)} prompts", len(pairs))


_LENGTHS = "equal output tokens"


def _latency(
    metric: Metric,
    read: Callable[[SavedRequest], float],
    pairs: Sequence[Pair],
    red: Sequence[Gate],
    margin: float,
    level: float,
) -> MetricResult:
    values = [(read(a), read(b)) for a, b in pairs if not (a.error or b.error)]
    blocking = [gate for gate in red if gate.name != _LENGTHS or metric is E2EL]
    logs = [math.log(b / a) for a, b in values if a > 0 and b > 0]
    ratio = interval = more = None
    if blocking:
        verdict = _not_comparable(blocking[0])
    else:
        bounds = interval_of_mean(logs, level) if len(logs) >= MINIMUM_PAIRS else None
        verdict, more = judge(logs, bounds, better=metric.better, margin=margin)
        verdict = _as_prompts(verdict)
        ratio = math.exp(mean(logs)) if logs else None
        interval = None if bounds is None else (math.exp(bounds[0]), math.exp(bounds[1]))
    return MetricResult(
        metric=metric,
        blocks=len(logs),
        baseline=_in_ms([a for a, _ in values]),
        candidate=_in_ms([b for _, b in values]),
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


def _outliers(pairs: Sequence[Pair]) -> tuple[str, ...]:
    """Prompts whose E2EL is far from what the typical ratio of the arms predicts."""
    logs = [math.log(b.e2el_s / a.e2el_s) for a, b in pairs if a.e2el_s > 0 and b.e2el_s > 0]
    middle = median(logs)
    if middle is None or len(logs) < MINIMUM_PAIRS:
        return ()
    far = [index for index, log in enumerate(logs) if abs(log - middle) > math.log(_OUTLIER_FACTOR)]
    if not far:
        return ()
    shown = ", ".join(str(index + 1) for index in far[:5])
    return (f"outliers: prompt {shown} over {_OUTLIER_FACTOR:g} x off the typical E2EL ratio",)
