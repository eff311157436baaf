"""Asks a server the fixed prompts and task items of an accuracy comparison, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hwtune.adapters.load.arms import ArmServer, given_arm, served_arms
from hwtune.adapters.load.ask import post_json, served_model
from hwtune.adapters.load.disk_evidence import plans_gate
from hwtune.adapters.load.exchange import Endpoint, parse_endpoint
from hwtune.domain.accuracy import AccuracyReport, ArmAnswers, Limits, judge_accuracy
from hwtune.domain.accuracy_tasks import TaskItem, is_right, make_items
from hwtune.domain.bench import ARMS, Gate
from hwtune.domain.errors import ExternalFailureError, UsageError
from hwtune.domain.logprobs import Completion, parse_completion
from hwtune.domain.passages import sentences
from hwtune.domain.validity import marker_gates

_SAMPLE_SENTENCES = 50
_TOKENS_PER_SENTENCE = 20.0
"""Where the server does not tokenize for us; the templates have 13 words on average."""
_TEMPLATE_TOKENS = 200
"""Room for the question around a needle's context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """How much is asked."""

    prompts: int
    """Fixed prompts whose log-probabilities are compared."""
    context_tokens: int
    """About as long as each fixed prompt, and as the needle's context."""
    output_tokens: int
    top: int
    """Likeliest tokens listed per position (vLLM's --max-logprobs, 20 by default)."""
    items: int
    """Per task."""
    repeats: int
    seed: int
    timeout_s: float


@dataclass(slots=True)
class _Script:
    """What every arm is asked, fixed by the first one: its tokenizer sets the lengths."""

    prompts: Sequence[str]
    items: Sequence[TaskItem]


def url_arms(
    urls: Mapping[str, str], run_dirs: Mapping[str, Path | None]
) -> tuple[list[ArmServer], tuple[Gate, ...]]:
    """Two servers that are up; where both run directories are known, their plans are compared.

    Raises:
        InputError: a run directory is missing, or of a server that listens elsewhere.
    """
    arms: list[ArmServer] = [given_arm(arm, (urls[arm],), run_dirs[arm]) for arm in ARMS]
    known = [path for arm in ARMS if (path := run_dirs[arm]) is not None]
    return arms, (plans_gate(known[:1], known[1:]),) if len(known) == len(ARMS) else ()


def own_arms(
    model: str, profile: str, flags: Sequence[str], run_dir: Path, ready_timeout_s: float
) -> tuple[list[ArmServer], tuple[Gate, ...]]:
    """Two servers to start, one after the other."""
    baseline, candidate, plans = served_arms(
        model, profile, flags, port=None, run_dir=run_dir, ready_timeout_s=ready_timeout_s
    )
    return [baseline, candidate], (plans,)


def compare_accuracy(
    arms: Sequence[ArmServer],
    gates: Sequence[Gate],
    questions: Questions,
    limits: Limits,
    say: Callable[[str], None],
) -> AccuracyReport:
    """Asks baseline and candidate the same, each while it runs alone, and judges.

    Raises:
        ExternalFailureError: a server failed or refused a question.
        UsageError: the questions do not fit into the model's context.
    """
    script: _Script | None = None
    answers, proofs, name = [], [], ""
    for arm in arms:
        try:
            say(f"{arm.arm}: starting")
            endpoint = parse_endpoint(arm.start()[0])
            name, most = served_model(endpoint)
            script = script or _write(endpoint, name, most, questions)
            answers.append(_ask(arm, endpoint, name, script, questions, say))
            proofs.append(arm.verify(require_kernel_hits=True))
        finally:
            arm.stop()
    all_gates = (*marker_gates(proofs), *gates)
    items = script.items if script else ()
    return judge_accuracy(name, answers[0], answers[1], items, limits, all_gates)


def _write(endpoint: Endpoint, model: str, most: int | None, questions: Questions) -> _Script:
    per_sentence = _tokens_per_sentence(endpoint, model, questions)
    count = max(1, round(questions.context_tokens / per_sentence))
    wanted = round(count * per_sentence) + _TEMPLATE_TOKENS + questions.output_tokens
    if most is not None and wanted > most:
        message = (
            f"--context {questions.context_tokens}: with question and answer about {wanted} tokens,"
            f" more than the server's {most}"
        )
        raise UsageError(message)
    return _Script(
        prompts=[
            " ".join(sentences(count, f"{questions.seed}/prompt/{number}"))
            for number in range(questions.prompts)
        ],
        items=make_items(questions.items, questions.seed, count),
    )


def _tokens_per_sentence(endpoint: Endpoint, model: str, questions: Questions) -> float:
    text = " ".join(sentences(_SAMPLE_SENTENCES, f"{questions.seed}/sample"))
    try:
        fields = {"model": model, "prompt": text}
        count = post_json(endpoint, "/tokenize", fields, questions.timeout_s)["count"]
        return max(1.0, int(count) / _SAMPLE_SENTENCES)
    except (ExternalFailureError, KeyError, TypeError, ValueError):
        return _TOKENS_PER_SENTENCE


def _ask(
    arm: ArmServer,
    endpoint: Endpoint,
    model: str,
    script: _Script,
    questions: Questions,
    say: Callable[[str], None],
) -> ArmAnswers:
    def complete(text: str) -> Completion:
        fields = {
            "model": model,
            "prompt": text,
            "max_tokens": questions.output_tokens,
            "ignore_eos": True,
            "temperature": 0.0,
            "logprobs": questions.top,
            "prompt_logprobs": questions.top,
            "return_tokens_as_token_ids": True,
        }
        return _parsed(endpoint, post_json(endpoint, _PATH, fields, questions.timeout_s))

    completions = tuple(map(complete, script.prompts))
    repeated = tuple(map(complete, script.prompts[: questions.repeats]))
    say(f"{arm.arm}: {len(completions)} prompts answered, {len(repeated)} of them twice")
    right = tuple(_is_right(endpoint, model, item, questions) for item in script.items)
    say(f"{arm.arm}: {len(right)} task items answered")
    return ArmAnswers(arm=arm.arm, completions=completions, repeated=repeated, right=right)


_PATH = "/v1/completions"


def _parsed(endpoint: Endpoint, data: Any) -> Completion:  # noqa: ANN401 - JSON
    try:
        return parse_completion(data)
    except ValueError as error:
        message = f"{endpoint.url}{_PATH}: {error}"
        raise ExternalFailureError(message) from None


def _is_right(endpoint: Endpoint, model: str, item: TaskItem, questions: Questions) -> bool:
    fields = {
        "model": model,
        "prompt": item.prompt,
        "max_tokens": item.max_tokens,
        "stop": list(item.stop),
        "temperature": 0.0,
    }
    data = post_json(endpoint, _PATH, fields, questions.timeout_s)
    try:
        return is_right(item, str(data["choices"][0]["text"]))
    except (KeyError, IndexError, TypeError) as error:
        message = f"{endpoint.url}{_PATH}: the answer has no text: {error!r}"
        raise ExternalFailureError(message) from None
