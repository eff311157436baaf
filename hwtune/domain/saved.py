"""Result files of others, judged by the same rules as far as they carry evidence.

Two saved runs were made one after the other: a drift between them looks like a difference. That is
said with every verdict; only an interleaved run excludes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hwtune.domain.bench import (
    Comparison,
    Gate,
    MetricResult,
    QuantileResult,
    TierResult,
    Verdict,
)
from hwtune.domain.bench_metrics import E2EL, OUTPUT_THROUGHPUT, Metric
from hwtune.domain.outputs import output_gates
from hwtune.domain.quantiles import quantile_results
from hwtune.domain.saved_drift import explained, outlier_lines, run_drift
from hwtune.domain.saved_run import LATENCIES, Pair, SavedRequest, SavedRun
from hwtune.domain.stats import interval_of_mean, judge, mean, median
from hwtune.domain.validity import checked, gate
from hwtune.domain.workload import MINIMUM_PAIRS, check_levels

SEQUENTIAL = "the runs were made one after the other, so a drift between them is not excluded"


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
    pairs = saved_pairs(first, second)
    good = [(a, b) for a, b in pairs if not (a.error or b.error)]
    gates = saved_gates(first, second)
    red = [gate for gate in gates if gate.state == "failed"]
    texts = _texts(good)
    counted = [request.input_tokens for pair in good for request in pair]
    drift = run_drift(first, second) if not red else None
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
                explained(_latency(metric, read, good, red, margin, level), metric, drift)
                for metric, read in LATENCIES
            ),
            _throughput(first, second, red),
        ),
        drift=(*outlier_lines(good), *(drift.lines if drift else ())),
        quantiles=_quantiles(good, red, level, judged),
    )


def _quantiles(
    pairs: Sequence[Pair], red: Sequence[Gate], level: float, judged: Sequence[tuple[str, str]]
) -> tuple[QuantileResult, ...]:
    return tuple(
        result
        for metric, read in LATENCIES
        for result in quantile_results(
            metric,
            [((read(a),), (read(b),)) for a, b in pairs],
            level=level,
            judged=[s for n, s in judged if n == metric.name and not _blocking(metric, red)],
        )
    )


def _blocking(metric: Metric, red: Sequence[Gate]) -> list[Gate]:
    """Gates that void a metric: TTFT and TPOT do not depend on the length of the answer."""
    return [gate for gate in red if gate.name != _LENGTHS or metric is E2EL]


def saved_pairs(first: SavedRun, second: SavedRun) -> tuple[Pair, ...]:
    """Requests for the same prompt: by its name where both files tell, else by their order."""
    sides = [[request for request in run.requests if not request.error] for run in (first, second)]
    if not all(request.key for side in sides for request in side) or not all(sides):
        return tuple(zip(first.requests, second.requests, strict=False))
    waiting: dict[str, list[SavedRequest]] = {}
    for request in sides[1]:
        waiting.setdefault(request.key or "", []).append(request)
    found = [(a, waiting[a.key or ""].pop(0)) for a in sides[0] if waiting.get(a.key or "")]
    return tuple(found)


def saved_gates(first: SavedRun, second: SavedRun) -> tuple[Gate, ...]:
    """What two result files can prove or disprove."""
    both = saved_pairs(first, second)
    pairs = [(a, b) for a, b in both if not (a.error or b.error)]
    return (
        _different_files(first, second),
        _no_failure(first, second),
        _same_workload(first, second),
        _same_inputs(first, second, pairs),
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


def _same_inputs(first: SavedRun, second: SavedRun, pairs: Sequence[Pair]) -> Gate:
    """The same prompts, by name where there are names, and as long."""
    counts = [sum(not request.error for request in run.requests) for run in (first, second)]
    differing = sum(a.input_tokens != b.input_tokens for a, b in pairs)
    totals = [sum(r.input_tokens for r in run.requests if not r.error) for run in (first, second)]
    problem = ""
    if differing or totals[0] != totals[1] or max(counts) != len(pairs):
        problem = (
            f"prompts differ: {totals[0]} / {totals[1]} input tokens in all, {len(pairs)} of"
            f" {max(counts)} prompts pair up, {differing} of them with another length"
        )
    return checked("equal input tokens", problem, f"equal in {len(pairs)} prompts", max(counts))


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
    values = [(read(a), read(b)) for a, b in pairs]
    blocking = _blocking(metric, red)
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
