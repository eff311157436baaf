"""Where answers part: rounding is told from a broken kernel."""

from __future__ import annotations

import random

import pytest

from hwtune.domain.outputs import output_gates
from hwtune.domain.partings import Texts, other_kind, partings

WORDS = [
    "the",
    "model",
    "answers",
    "with",
    "common",
    "words",
    "that",
    "repeat",
    "in",
    "any",
    "prose",
    "of",
    "some",
    "length",
]
TOKENS = 128


def _prose(rng: random.Random, count: int = TOKENS) -> list[str]:
    return rng.choices(WORDS, k=count)


def _noise(rng: random.Random, count: int = TOKENS) -> list[str]:
    return ["".join(chr(rng.randrange(33, 127)) for _ in range(6)) for _ in range(count)]


def _pair(rng: random.Random, parts_at: int, rest: list[str]) -> tuple[str, str]:
    """Two answers of 128 words that share the first ``parts_at``."""
    first = _prose(rng)
    return " ".join(first), " ".join([*first[:parts_at], *rest[parts_at:]])


def _rounding(rng: random.Random, per_token: float) -> tuple[str, str]:
    parts_at = min(TOKENS, int(rng.expovariate(per_token)))
    return _pair(rng, parts_at, _prose(rng))


def _states(texts: Texts, repeats: Texts = ()) -> list[str]:
    return [gate.state for gate in output_gates(texts, [TOKENS] * len(texts), repeats)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("per_token", [0.0001, 0.01, 0.05])
def test_rounding_may_choose_another_token_anywhere(per_token: float, seed: int) -> None:
    rng = random.Random(f"{per_token}/{seed}")
    texts = [_rounding(rng, per_token) for _ in range(24)]
    assert _states(texts) == ["passed", "passed"]


@pytest.mark.parametrize("count", [6, 24])
@pytest.mark.parametrize("parts_at", [0, 1, 2])
def test_sane_prose_that_parts_at_once_is_another_model(parts_at: int, count: int) -> None:
    rng = random.Random(count + parts_at)
    gates = output_gates(
        [_pair(rng, parts_at, _prose(rng)) for _ in range(count)], [TOKENS] * count
    )
    assert gates[1].state == "failed"
    assert f"the same text in 0 of {count} prompts" in gates[1].evidence


@pytest.mark.parametrize("parts_at", [1, 5, 20, 100])
def test_noise_after_a_right_beginning_is_found_however_late_it_comes(parts_at: int) -> None:
    rng = random.Random(parts_at)
    texts = [_pair(rng, parts_at, _noise(rng)) for _ in range(8)]
    assert "another kind of text" in other_kind(texts)
    assert _states(texts)[0] == "failed"
    swapped = [(b, a) for a, b in texts]
    assert _states(swapped)[0] == "failed"


def test_prose_that_goes_on_differently_is_the_same_kind() -> None:
    rng = random.Random(4)
    assert other_kind([_pair(rng, 10, _prose(rng)) for _ in range(40)]) == ""


def test_a_baseline_that_parts_from_itself_excuses_a_candidate_that_parts_no_more() -> None:
    rng = random.Random(5)
    texts = [_rounding(rng, 0.25) for _ in range(40)]
    assert _states(texts)[1] == "failed"
    assert _states(texts, [_rounding(rng, 0.25) for _ in range(8)])[1] == "passed"
    same = [_rounding(rng, 1e-6) for _ in range(8)]
    gate = output_gates(texts, [TOKENS] * 40, same)[1]
    assert gate.state == "failed" and "with itself: the same in 8 of 8" in gate.evidence


def test_tokens_are_estimated_from_bytes_where_a_file_does_not_tell_them() -> None:
    found = partings([("abcd" * 10, "abcd" * 5 + "x" * 20), ("same", "same")])
    assert (found.same, found.parted, found.median_token) == (1, 1, 5.0)
    assert partings([("答案" * 6, "答案" * 4)]).agreed_tokens == pytest.approx(6.0)


def test_one_answer_is_no_evidence() -> None:
    assert output_gates([("yes", "no")], [1])[1].state == "passed"
    assert output_gates([], [])[1].state == "not checked"
