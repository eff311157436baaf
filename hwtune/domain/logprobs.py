"""Log-probabilities of two servers over the same tokens, position by position."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Part = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Position:
    """What one server thought of one place in the text. Logarithms are natural."""

    token: str
    """The token that stands there: its id, or its text where the server names no ids."""
    logprob: float
    top: tuple[tuple[str, float], ...]
    """The likeliest tokens, likeliest first; ``token`` may be among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One answer with its log-probabilities."""

    text: str
    prompt: tuple[Position, ...]
    """From the second prompt token on: teacher forcing, computed by the prefill path."""
    output: tuple[Position, ...]
    """One per generated token: computed by the decode path, but for the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How far two servers agree over positions with the same text before them."""

    part: Part
    positions: int
    mean_abs_delta: float
    """Mean |difference| of the text's own token's logprob, in nats."""
    max_abs_delta: float
    top1_agreement: float
    """Share of positions at which both have the same likeliest token."""
    decided: int
    """Positions at which the baseline's likeliest token leads by more than ``DECIDED_LEAD``."""
    decided_flips: int
    """Of those, positions at which the candidate's likeliest is another one."""
    mean_kl: float
    """KL(baseline || candidate) over the top tokens both list and one bucket for the rest, in
    nats: never more than the true divergence, since merging outcomes cannot raise it."""
    max_kl: float
    median_error: float
    """Of the positions' relative errors: the root mean square of the differences between both
    arms' log-probabilities, over the spread (standard deviation) of the baseline's, on the tokens
    both list. It has no unit, so a model of nearly equal logits is judged like a sharp one."""
    largest_error: float
    strays: int
    """Positions with a relative error over ``STRAY_ERROR``: there the arms saw another context."""


DECIDED_LEAD = 0.5
"""In nats. A likeliest token that leads by less may change with the order of a BF16 sum."""
STRAY_ERROR = 0.5
"""Rounding in BF16 stays far below; another context reaches about 1 (docs/measuring.md)."""
_LEAST_MASS = 1e-7


def parse_completion(data: Any) -> Completion:  # noqa: ANN401 - JSON of a server
    """An answer of ``/v1/completions`` with ``logprobs`` and ``prompt_logprobs``.

    Raises:
        ValueError: something that was asked for is missing or is no number.
    """
    try:
        choice = data["choices"][0]
        prompt = tuple(map(_prompt_position, filter(None, choice.get("prompt_logprobs") or ())))
        return Completion(
            text=str(choice["text"]), prompt=prompt, output=_output(choice.get("logprobs"))
        )
    except (KeyError, IndexError, TypeError, AttributeError, StopIteration) as error:
        message = f"the answer lacks what was asked for: {error!r}"
        raise ValueError(message) from None


def _prompt_position(entry: dict[str, dict[str, float]]) -> Position:
    """vLLM lists the prompt's own token first, then the likeliest (v1/engine/logprobs.py)."""
    ranked = [(token, float(value["logprob"])) for token, value in entry.items()]
    own, logprob = ranked[0]
    return Position(own, logprob, _ordered(ranked))


def _output(data: dict[str, Any] | None) -> tuple[Position, ...]:
    if data is None:
        return ()
    rows = zip(data["tokens"], data["token_logprobs"], data["top_logprobs"], strict=True)
    return tuple(
        Position(str(token), float(logprob), _ordered(top.items())) for token, logprob, top in rows
    )


def _ordered(pairs: Iterable[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(((t, float(v)) for t, v in pairs), key=lambda pair: -pair[1]))


def not_finite(completion: Completion) -> int:
    """Positions with a NaN or plus infinity. Minus infinity is an impossible token, which vLLM's
    JSON has as -9999 (entrypoints/openai)."""
    return sum(
        any(math.isnan(value) or value == math.inf for value in _values(position))
        for position in (*completion.prompt, *completion.output)
    )


def _values(position: Position) -> list[float]:
    return [position.logprob, *(value for _, value in position.top)]


def agreement(part: Part, pairs: Sequence[tuple[Completion, Completion]]) -> Agreement | None:
    """Over all positions of all (baseline, candidate) pairs that have the same text before them.

    Prompts: every position. Outputs: up to and including the first token that differs. None when
    no position is left.
    """
    places = [place for left, right in pairs for place in _places(part, left, right)]
    places = [place for place in places if all(map(_usable, place))]
    if not places:
        return None
    deltas = [abs(left.logprob - right.logprob) for left, right in places if _same(left, right)]
    divergences = [_divergence(left, right) for left, right in places]
    errors = sorted(_relative_error(left, right) for left, right in places)
    decided = [place for place in places if _lead(place[0]) > DECIDED_LEAD]
    return Agreement(
        part=part,
        positions=len(places),
        mean_abs_delta=math.fsum(deltas) / len(deltas) if deltas else 0.0,
        max_abs_delta=max(deltas, default=0.0),
        top1_agreement=sum(map(_same_top, *zip(*places, strict=True))) / len(places),
        decided=len(decided),
        decided_flips=sum(not _same_top(left, right) for left, right in decided),
        mean_kl=math.fsum(divergences) / len(divergences),
        max_kl=max(divergences),
        median_error=errors[len(errors) // 2],
        largest_error=errors[-1],
        strays=sum(error > STRAY_ERROR for error in errors),
    )


def _places(part: Part, left: Completion, right: Completion) -> list[tuple[Position, Position]]:
    if part == "prefill":
        return list(zip(left.prompt, right.prompt, strict=False))
    places = []
    for pair in zip(left.output, right.output, strict=False):
        places.append(pair)
        if not _same(*pair):
            break
    return places


def _usable(position: Position) -> bool:
    return bool(position.top) and all(map(math.isfinite, _values(position)))


def _same(left: Position, right: Position) -> bool:
    return left.token == right.token


def _same_top(left: Position, right: Position) -> bool:
    """Equal first tokens, or a tie at the top."""
    best = right.top[0][1]
    return any(token == left.top[0][0] and value == best for token, value in right.top)


def _lead(position: Position) -> float:
    values = [value for _, value in position.top[:2]]
    return values[0] - values[1] if len(values) == 2 else math.inf


def _divergence(left: Position, right: Position) -> float:
    other = dict(right.top)
    shared = [(math.exp(v), math.exp(other[t])) for t, v in left.top if t in other]
    shared.append((1.0 - sum(p for p, _ in shared), 1.0 - sum(q for _, q in shared)))
    terms = (p * math.log(p / max(q, _LEAST_MASS)) for p, q in shared if p > _LEAST_MASS)
    return max(0.0, math.fsum(terms))


def _relative_error(left: Position, right: Position) -> float:
    """1 where the lists share less than half: nothing is left to compare, and that says enough."""
    ours, theirs = ({**dict(side.top), side.token: side.logprob} for side in (left, right))
    pairs = [(value, theirs[token]) for token, value in ours.items() if token in theirs]
    if 2 * len(pairs) < len(ours) or len(pairs) < 2:
        return 1.0
    center = math.fsum(value for value, _ in pairs) / len(pairs)
    spread = math.sqrt(math.fsum((value - center) ** 2 for value, _ in pairs))
    distance = math.sqrt(math.fsum((value - other) ** 2 for value, other in pairs))
    return distance / spread if spread > 0.0 else float(distance > 0.0)
