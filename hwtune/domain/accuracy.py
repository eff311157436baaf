"""Whether the candidate still computes the same model: log-probabilities, repeatability, tasks.

The scope is "accuracy": no time is measured here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hwtune.domain.accuracy_tasks import TASKS, TaskItem
from hwtune.domain.bench import Gate
from hwtune.domain.launch import Arm
from hwtune.domain.logprobs import Agreement, Completion, Part, agreement, not_finite
from hwtune.domain.validity import checked

SCOPE = "accuracy"
SCHEMA_VERSION = 1
AccuracyVerdict = Literal["agrees", "differs", "not comparable"]
PARTS: tuple[Part, ...] = ("prefill", "decode")
LEAST_POSITIONS = 100
"""Fewer positions than this decide nothing."""
TASK_ALPHA = 0.05
"""A task is lost when as many items lost against gained are less likely than this by chance, over
all tasks that can be lost together (Bonferroni): equal arms fail the gate in 1 of 20 runs at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What still counts as the same model."""

    max_mean_kl: float = 0.01
    """In nats per position. Chosen; what was measured stands in docs/measuring.md."""
    max_flips: float = 0.01
    """Share of decided positions whose likeliest token may change."""
    max_strays: float = 0.005
    """Share of positions that may have seen another context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmAnswers:
    """Everything one server was asked."""

    arm: Arm
    completions: tuple[Completion, ...]
    """One per fixed prompt."""
    repeated: tuple[Completion, ...]
    """The first prompts once more."""
    right: tuple[bool, ...]
    """One per task item."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    """One task in both arms, item by item."""

    task: str
    items: int
    baseline_right: int
    candidate_right: int
    lost: int
    """Right in the baseline, wrong in the candidate."""
    gained: int
    lost_at_most: float
    """Upper end of the 95 % Clopper-Pearson interval of the share of items lost."""
    p_value: float
    """Exact McNemar test (binomial over the items that changed), one-sided: the probability of
    at least this many losses among them if losing and gaining were equally likely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyReport:
    """The whole answer."""

    schema_version: int = SCHEMA_VERSION
    scope: str = SCOPE
    model: str
    verdict: AccuracyVerdict
    reason: str
    limits: Limits
    agreements: tuple[Agreement, ...]
    same_text: int
    """Prompts whose greedy answer is the same text in both arms."""
    prompts: int
    tasks: tuple[TaskScore, ...]
    gates: tuple[Gate, ...]
    notes: tuple[str, ...]

    @property
    def answer_is_no(self) -> bool:
        """Anything but "agrees"."""
        return self.verdict != "agrees"


def judge_accuracy(
    model: str,
    baseline: ArmAnswers,
    candidate: ArmAnswers,
    items: Sequence[TaskItem],
    limits: Limits,
    gates: Sequence[Gate] = (),
) -> AccuracyReport:
    """Compares both arms' answers to the same questions."""
    pairs = list(zip(baseline.completions, candidate.completions, strict=True))
    agreements = [found for part in PARTS if (found := agreement(part, pairs)) is not None]
    tasks = tuple(_score(task, baseline, candidate, items) for task in TASKS)
    all_gates = (
        *gates,
        _same_tokens_gate(pairs),
        _finite_gate(baseline, candidate),
        _repeatable_gate(baseline, candidate),
        *(_agreement_gate(found, limits) for found in agreements),
        _tasks_gate(tasks),
    )
    verdict, reason = _verdict(agreements, all_gates)
    return AccuracyReport(
        model=model,
        verdict=verdict,
        reason=reason,
        limits=limits,
        agreements=tuple(agreements),
        same_text=sum(left.text == right.text for left, right in pairs),
        prompts=len(pairs),
        tasks=tasks,
        gates=all_gates,
        notes=tuple(_notes(tasks)),
    )


def _same_tokens_gate(pairs: Sequence[tuple[Completion, Completion]]) -> Gate:
    """Another tokenizer, or a server that names only a part of the prompt."""
    tokens = [[[place.token for place in side.prompt] for side in pair] for pair in pairs]
    count = sum(left != right for left, right in tokens)
    problem = f"{count} of {len(pairs)} prompts are other tokens in the candidate" if count else ""
    total = sum(len(left) for left, _ in tokens)
    return checked("same prompt tokens", problem, f"{total} tokens in both arms", total)


def _finite_gate(*arms: ArmAnswers) -> Gate:
    bad = {arm.arm: sum(map(not_finite, arm.completions)) for arm in arms}
    problem = ", ".join(
        f"{name}: {count} positions with NaN" for name, count in bad.items() if count
    )
    return checked("finite log-probabilities", problem, "no NaN, no infinity", 1)


def _repeatable_gate(baseline: ArmAnswers, candidate: ArmAnswers) -> Gate:
    """A candidate that repeats itself less well than the baseline has a race or reads junk."""
    rates = [_unrepeated(arm) for arm in (baseline, candidate)]
    count = len(candidate.repeated)
    problem = ""
    if rates[1] > rates[0]:
        problem = (
            f"asked twice, the candidate changed its answer in {rates[1]} of {count} prompts,"
            f" the baseline in {rates[0]}"
        )
    evidence = f"asked twice, {rates[1]} of {count} answers changed (baseline: {rates[0]})"
    return checked("repeatable answers", problem, evidence, count)


def _unrepeated(arm: ArmAnswers) -> int:
    pairs = zip(arm.completions, arm.repeated, strict=False)
    return sum(first.text != second.text for first, second in pairs)


def _agreement_gate(found: Agreement, limits: Limits) -> Gate:
    allowed = limits.max_flips * found.decided
    problems = []
    if found.mean_kl > limits.max_mean_kl:
        problems.append(f"mean KL {found.mean_kl:.2g} nats, over {limits.max_mean_kl:g}")
    if found.decided_flips > allowed:
        problems.append(
            f"another likeliest token at {found.decided_flips} of {found.decided} decided positions"
        )
    if found.strays > limits.max_strays * found.positions:
        problems.append(
            f"{found.strays} of {found.positions} positions differ as if they saw another context"
        )
    evidence = (
        f"{found.positions} positions, median error {found.median_error * 100:.2g} %,"
        f" mean KL {found.mean_kl:.2g} nats"
    )
    return checked(f"{found.part} logprobs agree", "; ".join(problems), evidence, found.positions)


def _score(
    task: str, baseline: ArmAnswers, candidate: ArmAnswers, items: Sequence[TaskItem]
) -> TaskScore:
    from scipy import stats

    pairs = [
        (left, right)
        for item, left, right in zip(items, baseline.right, candidate.right, strict=True)
        if item.task == task
    ]
    lost = sum(left and not right for left, right in pairs)
    gained = sum(right and not left for left, right in pairs)
    changed = lost + gained
    at_most, p_value = 1.0, 1.0
    if pairs:
        at_most = float(stats.binomtest(lost, len(pairs)).proportion_ci(0.95, "exact").high)
    if changed:
        p_value = float(stats.binomtest(lost, changed, 0.5, alternative="greater").pvalue)
    return TaskScore(
        task=task,
        items=len(pairs),
        baseline_right=sum(left for left, _ in pairs),
        candidate_right=sum(right for _, right in pairs),
        lost=lost,
        gained=gained,
        lost_at_most=at_most,
        p_value=p_value,
    )


def _tasks_gate(tasks: Sequence[TaskScore]) -> Gate:
    telling = [score for score in tasks if score.baseline_right]
    lost = [score for score in telling if score.p_value < TASK_ALPHA / len(telling)]
    problem = ", ".join(
        f"{score.task}: {score.baseline_right} of {score.items} right before,"
        f" {score.candidate_right} now (p = {score.p_value:.2g})"
        for score in lost
    )
    names = ", ".join(
        f"{score.task} {score.lost} lost of {score.baseline_right}" for score in telling
    )
    return checked("tasks not lost", problem, names, len(telling))


def _verdict(agreements: Sequence[Agreement], gates: Sequence[Gate]) -> tuple[AccuracyVerdict, str]:
    proof = [gate for gate in gates if gate.state == "failed" and _is_proof(gate)]
    if proof:
        return "not comparable", f"{proof[0].name}: {proof[0].evidence}"
    red = [gate for gate in gates if gate.state == "failed"]
    if red:
        return "differs", "; ".join(f"{gate.name}: {gate.evidence}" for gate in red)
    counted = {found.part: found.positions for found in agreements}
    few = [part for part in PARTS if counted.get(part, 0) < LEAST_POSITIONS]
    if few:
        seen = ", ".join(f"{counted.get(part, 0)} {part} positions" for part in few)
        return "not comparable", f"only {seen}, {LEAST_POSITIONS} at least: ask for more prompts"
    return "agrees", "every check passed"


def _is_proof(gate: Gate) -> bool:
    """What ran or was read is not what was claimed, so agreement or difference says nothing about it."""
    return gate.name.startswith(("markers of", "arms differ", "same prompt tokens"))


def _notes(tasks: Sequence[TaskScore]) -> list[str]:
    blank = [score.task for score in tasks if score.items and not score.baseline_right]
    if not blank:
        return []
    return [f"the baseline solves no item of {', '.join(blank)}: these say nothing here"]


def lm_eval_command(model: str, url: str | None) -> str:
    """The lm-evaluation-harness command for one running server (its docs/API_guide.md)."""
    base = (url or "http://HOST:PORT").rstrip("/").removesuffix("/v1")
    arguments = f"model={model},base_url={base}/v1/completions,num_concurrent=4,max_retries=3"
    tasks = "gsm8k,arc_challenge,hellaswag"
    command = "lm_eval --model local-completions --tasks " + tasks
    return f"{command} --model_args '{arguments},tokenized_requests=False'"
