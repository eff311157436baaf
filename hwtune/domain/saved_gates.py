"""What two result files can prove or disprove about each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, cycle
from typing import Final

from hwtune.domain.bench import Gate
from hwtune.domain.bench_metrics import TPOT, TTFT, Metric
from hwtune.domain.outputs import output_gates
from hwtune.domain.partings import Texts
from hwtune.domain.saved_run import Pair, SavedRequest, SavedRun
from hwtune.domain.validity import checked, gate

_LENGTHS: Final = "equal output tokens"
_LOAD: Final = "equal load in spite of lengths"
_CONTEXT: Final = "equal contexts in spite of lengths"
_SPARED: Final = {_LENGTHS: (TTFT.name, TPOT.name), _CONTEXT: (TTFT.name,)}
"""Metrics that a red gate does not void."""
_MOST_TOKENS_APART: Final = 0.05
"""Where requests run beside each other, this much less output is less work for the others."""
_MOST_CONTEXT_APART: Final = 0.02
"""A decode step's time is at most proportional to the context it reads."""
_ALONE: Final = ("synchronous", "concurrent 1")
"""Strategies of guidellm with one request at a time."""


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


def blocking(metric: Metric, red: Sequence[Gate]) -> list[Gate]:
    """Red gates that void a metric."""
    return [gate for gate in red if metric.name not in _SPARED.get(gate.name, ())]


def saved_gates(first: SavedRun, second: SavedRun) -> tuple[Gate, ...]:
    """Every condition that the files carry evidence for."""
    pairs = answered(first, second)
    compared = [pair for a, b in _rounds(first, second) for pair in answered(a, b)]
    texts = _with_texts(compared)
    return (
        _different_runs(first, second),
        _no_failure(first, second),
        _same_workload(first, second),
        _same_inputs(first, second, pairs),
        *output_gates(texts_of(texts), [a.output_tokens for a, _ in texts], _own_texts(first)),
        *_lengths(first, second, compared),
        _repetitions(first, second),
    )


def answered(first: SavedRun, second: SavedRun) -> list[Pair]:
    """Pairs in which both sides answered."""
    return [(a, b) for a, b in saved_pairs(first, second) if not (a.error or b.error)]


def texts_of(pairs: Sequence[Pair]) -> list[tuple[str, str]]:
    """Both answers of the pairs whose files hold them."""
    return [(a.text or "", b.text or "") for a, b in _with_texts(pairs)]


def _with_texts(pairs: Sequence[Pair]) -> list[Pair]:
    return [(a, b) for a, b in pairs if a.text is not None and b.text is not None]


def _rounds(first: SavedRun, second: SavedRun) -> list[tuple[SavedRun, SavedRun]]:
    """Every repetition of both sides at least once: a broken one must not hide behind the first."""
    a, b = first.parts, second.parts
    if len(a) < len(b):
        return list(zip(cycle(a), b, strict=False))
    return list(zip(a, cycle(b), strict=False))


def _own_texts(first: SavedRun) -> Texts:
    """Answers of the baseline's repetitions to the same prompts."""
    return [text for a, b in combinations(first.parts[:3], 2) for text in texts_of(answered(a, b))]


def _different_runs(first: SavedRun, second: SavedRun) -> Gate:
    runs = [(f"baseline {run.source}", run) for run in first.parts]
    runs += [(f"candidate {run.source}", run) for run in second.parts]
    same = next((f"{a} and {b}" for (a, x), (b, y) in combinations(runs, 2) if x.same_times(y)), "")
    problem = f"{same} are the same file or copies: every time in them is equal" if same else ""
    return gate("two runs", problem, "different measurements")


def _repetitions(first: SavedRun, second: SavedRun) -> Gate:
    """Of one run per arm nothing tells how much runs differ."""
    counts = f"{len(first.parts)} / {len(second.parts)} runs"
    if first.repetitions or second.repetitions:
        return Gate(name="repeated", state="passed", evidence=f"{counts}; intervals hold both")
    evidence = "one run per arm: how much runs differ is in no interval; save NAME_rep1, NAME_rep2"
    return Gate(name="repeated", state="not checked", evidence=evidence)


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


def _lengths(first: SavedRun, second: SavedRun, pairs: Sequence[Pair]) -> list[Gate]:
    """Equal answers; where they are not, whether the first token and the steps still compare.

    The length of an answer changes its own TTFT and TPOT little, by the context that its steps
    read; but shorter answers of others leave a server more time for each.
    """
    differing = sum(a.output_tokens != b.output_tokens for a, b in pairs)
    if not differing:
        return [checked(_LENGTHS, "", f"equal in {len(pairs)} answers", len(pairs))]
    totals = [sum(pair[side].output_tokens for pair in pairs) for side in (0, 1)]
    apart = f"{totals[0]} / {totals[1]}"
    problem = (
        f"output tokens differ in {differing} of {len(pairs)} answers ({apart}): E2EL and throughput"
        " compare different work; use ignore_eos"
    )
    gates = [gate(_LENGTHS, problem, "")]
    if not all(map(_one_at_a_time, (first, second))):
        less = (
            "the arms had other work at the same time"
            if _apart(*totals) > _MOST_TOKENS_APART
            else ""
        )
        said = f"output tokens of all requests {apart}"
        gates.append(gate(_LOAD, f"{less}: {said}" if less else "", said))
    contexts = [sum(p[s].input_tokens + p[s].output_tokens / 2 for p in pairs) for s in (0, 1)]
    said = f"mean context of a step {contexts[0] / len(pairs):.0f} / {contexts[1] / len(pairs):.0f}"
    other = _apart(*contexts) > _MOST_CONTEXT_APART
    gates.append(gate(_CONTEXT, f"TPOT compares other contexts: {said}" if other else "", said))
    return gates


def _apart(first: float, second: float) -> float:
    return abs(first - second) / max(first, second, 1.0)


def _one_at_a_time(run: SavedRun) -> bool:
    return run.workload.get("concurrency") == 1 or run.workload.get("strategy") in _ALONE
