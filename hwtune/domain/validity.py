"""Conditions of a valid comparison. Any red one: no speed-up is stated."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from hwtune.domain.bench import ARMS, ArmProof, Gate, RequestRecord
from hwtune.domain.launch import LaunchPlan
from hwtune.domain.outputs import output_gates
from hwtune.domain.partings import Texts
from hwtune.domain.stats import interval_of_mean, mean

LATE_S = 0.005
"""Of a read or a send; shorter delays are those of any system."""
_FEWEST_TEXTS = 6
_OTHER_LENGTH = 1.25
"""Ratio of characters. Texts of one model by equal tokens are equally long within a few per cent."""

_PLACES = frozenset({"--port", "--profiler-config.torch_profiler_dir"})
"""Flags of a server that is one of two: where it listens, and where its profile goes."""

Pair = tuple[RequestRecord, RequestRecord]
"""Baseline and candidate record of the same prompt."""


def gate(name: str, problem: str, evidence: str) -> Gate:
    """Failed with ``problem`` when there is one, else passed with ``evidence``."""
    if problem:
        return Gate(name=name, state="failed", evidence=problem)
    return Gate(name=name, state="passed", evidence=evidence)


def checked(name: str, problem: str, evidence: str, over: int) -> Gate:
    """Like ``gate``, and not checked when there was nothing to look at."""
    if not over and not problem:
        return Gate(name=name, state="not checked", evidence="nothing to check")
    return gate(name, problem, evidence)


def marker_gates(proofs: Iterable[ArmProof]) -> tuple[Gate, ...]:
    """One per arm: markers present, kernels hit. Not checked for a server of unknown origin."""
    gates = []
    for proof in proofs:
        state = {True: "passed", False: "failed", None: "not checked"}[proof.passed]
        name = f"markers of the {proof.arm}"
        gates.append(Gate(name=name, state=state, evidence=proof.summary))  # type: ignore[arg-type]
    return tuple(gates)


def tier_gates(
    records: Sequence[RequestRecord],
    pairs: Sequence[Pair],
    output_tokens: int,
    repeats: Texts = (),
) -> tuple[Gate, ...]:
    """Gates over the measured requests of one tier.

    Args:
        records: every measured request.
        pairs: those that both arms answered.
        output_tokens: asked of every answer.
        repeats: the baseline's two answers to the same prompts, where it was asked twice.
    """
    return (
        _failures(records),
        _whole(records),
        _same_prompts(pairs),
        _equal(pairs, "input tokens", lambda record: record.prompt_tokens),
        _output_tokens(pairs, output_tokens),
        *output_gates(
            [(first.text, second.text) for first, second in pairs],
            [first.output_tokens or 0 for first, _ in pairs],
            repeats,
        ),
        _as_long(pairs),
        _streamed(records),
        _client_on_time(records),
    )


def _failures(records: Sequence[RequestRecord]) -> Gate:
    failed = [record for record in records if record.failure]
    counts = Counter(f"{record.arm}: {record.failure}" for record in failed)
    problem = ""
    if failed:
        listed = ", ".join(f"{number} x {reason}" for reason, number in counts.most_common(3))
        detail = f" ({failed[0].detail[:120]})" if failed[0].detail else ""
        problem = f"{len(failed)} of {len(records)} requests failed: {listed}{detail}"
    return checked("no failed request", problem, f"0 of {len(records)} failed", len(records))


def unusable(record: RequestRecord) -> str:
    """Why an answered request yields no latencies; empty when it does."""
    return record.damage or ("" if record.failure or record.tpot_s is not None else "no TPOT")


def _whole(records: Sequence[RequestRecord]) -> Gate:
    damaged = [reason for reason in map(unusable, records) if reason]
    problem = f"{len(damaged)} of {len(records)} records are damaged: {(damaged or [''])[0]}"
    shown = f"times of {len(records)} records are whole"
    return checked("whole records", problem if damaged else "", shown, len(records))


def _same_prompts(pairs: Sequence[Pair]) -> Gate:
    different = sum(first.prompt_id != second.prompt_id for first, second in pairs)
    problem = f"{different} of {len(pairs)} prompts differ between the arms" if different else ""
    return checked("same prompts", problem, f"{len(pairs)} prompts sent to both arms", len(pairs))


def _equal(pairs: Sequence[Pair], what: str, value: Callable[[RequestRecord], int | None]) -> Gate:
    differing = [pair for pair in pairs if value(pair[0]) != value(pair[1])]
    unknown = sum(value(record) is None for pair in pairs for record in pair)
    problem = f"{unknown} answers come without a number of {what}" if unknown else ""
    if differing and not unknown:
        totals = [sum(value(pair[side]) or 0 for pair in pairs) for side in (0, 1)]
        problem = (
            f"{what} differ in {len(differing)} of {len(pairs)} prompts:"
            f" baseline {totals[0]}, candidate {totals[1]} in all"
        )
    return checked(f"equal {what}", problem, f"equal in {len(pairs)} prompts", len(pairs))


def _output_tokens(pairs: Sequence[Pair], output_tokens: int) -> Gate:
    unequal = _equal(pairs, "output tokens", lambda record: record.output_tokens)
    wrong = sum(
        record.output_tokens != (record.asked_tokens or output_tokens)
        for pair in pairs
        for record in pair
    )
    if unequal.state == "failed" or not wrong:
        return unequal
    asked = {record.asked_tokens or output_tokens for pair in pairs for record in pair}
    count = f"{min(asked)} " if len(asked) == 1 else ""
    problem = f"{wrong} answers do not have the {count}tokens asked for"
    return gate(unequal.name, problem, "")


def _as_long(pairs: Sequence[Pair]) -> Gate:
    """Red when as many tokens make much less, or more, text: a stream that goes silent, say."""
    name = "text as long as its tokens"
    logs = [
        math.log((1 + len(second.text)) / (1 + len(first.text)))
        for first, second in pairs
        if first.output_tokens == second.output_tokens
    ]
    if len(logs) < _FEWEST_TEXTS:
        return Gate(name=name, state="not checked", evidence=f"{len(logs)} answers, too few")
    low, high = interval_of_mean(logs, 0.99)
    shown = f"candidate / baseline {math.exp(mean(logs)):.2f} in characters, for as many tokens"
    problem = max(low, -high) > math.log(_OTHER_LENGTH)
    return gate(name, shown if problem else "", shown)


def _streamed(records: Sequence[RequestRecord]) -> Gate:
    """Red when most answers of an arm came at once: then TTFT is E2EL, and TPOT is nothing."""
    answered = [record for record in records if record.failure is None and not unusable(record)]
    problems = []
    for arm in ARMS:
        mine = [record for record in answered if record.arm == arm]
        at_once = sum(_tokens_at_first(r) * 2 > (r.output_tokens or 0) for r in mine)
        if at_once * 2 > len(mine):
            problems.append(f"{arm}: {at_once} of {len(mine)} answers came, most of them, at once")
    shown = f"{len(answered)} answers came token by token"
    return checked("answers streamed", "; ".join(problems), shown, len(answered))


def _tokens_at_first(record: RequestRecord) -> float:
    """Tokens that were there when the first was."""
    times = record.chunk_times_s
    even = (record.output_tokens or 0) / max(len(times), 1)
    counts = record.chunk_tokens or [even] * len(times)
    # One token is always there; two of an answer of three are no sign.
    together = sum(count for time, count in zip(times, counts, strict=True) if time <= times[0])
    return together if together > 2 else 1


def _client_on_time(records: Sequence[RequestRecord]) -> Gate:
    """Red when a tenth of the requests was read, or in an open loop sent, late.

    Late is by 5 ms and a tenth of the request. A client that reads late reports a long TTFT and a
    short TPOT, whatever the server did; one that sends late offers less load than it says.
    """
    delays = [max(record.client_late_s, record.late_s) for record in records]
    late = [
        record
        for record, delay in zip(records, delays, strict=True)
        if record.e2el_s is not None and delay > max(LATE_S, 0.1 * record.e2el_s)
    ]
    worst_ms = max(delays, default=0.0) * 1e3
    shown = f"read or sent late in {len(late)} of {len(records)} requests, at worst by {worst_ms:.0f} ms"
    problem = f"the client is saturated: {shown}" if len(late) * 10 > len(records) else ""
    return checked("client on time", problem, shown, len(records))


def plan_difference_gate(baseline: LaunchPlan, candidate: LaunchPlan) -> Gate:
    """The arms may differ in the plugin's own facts, the port, and flags declared as added."""
    problems = [
        f"{name} {first!r} / {second!r}"
        for name, first, second in _plan_facts(baseline, candidate)
        if first != second
    ]
    return gate(
        "arms differ only in what was declared",
        "; ".join(problems)[:400],
        "same model, vLLM, flags and environment but for the plan's declared additions",
    )


def _plan_facts(baseline: LaunchPlan, candidate: LaunchPlan) -> list[tuple[str, object, object]]:
    return [
        ("model", baseline.model, candidate.model),
        ("served model", baseline.served_model_name, candidate.served_model_name),
        ("vLLM", baseline.vllm_version, candidate.vllm_version),
        ("device", baseline.device, candidate.device),
        ("checked mode", baseline.checked_rate, candidate.checked_rate),
        ("flags", _undeclared_flags(baseline), _undeclared_flags(candidate)),
        ("environment", _undeclared_environment(baseline), _undeclared_environment(candidate)),
    ]


def _undeclared_flags(plan: LaunchPlan) -> tuple[str, ...]:
    """The command without the flags that say where, and those that the plan declares as added."""
    declared = {added.name: added.value for added in plan.added}
    kept: list[str] = []
    words = iter(plan.argv)
    for word in words:
        name = word.split("=", 1)[0]
        if name not in declared and name not in _PLACES:
            kept.append(word)
        elif "=" not in word and declared.get(name, "value") not in ("", "true", "True"):
            next(words, None)
    return tuple(kept)


def _undeclared_environment(plan: LaunchPlan) -> dict[str, str]:
    declared = {added.name for added in plan.added}
    return {
        name: value
        for name, value in sorted(plan.environment.items())
        if name not in declared and not name.startswith("HWTUNE_")
    }
