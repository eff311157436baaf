"""Log-probabilities, tasks and the verdict over both."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from hwtune.domain.accuracy import (
    AccuracyReport,
    ArmAnswers,
    Limits,
    judge_accuracy,
    lm_eval_command,
)
from hwtune.domain.accuracy_tasks import TASKS, TaskItem, is_right, make_items
from hwtune.domain.bench import Gate
from hwtune.domain.launch import Arm
from hwtune.domain.logprobs import Completion, Position, agreement, not_finite, parse_completion
from hwtune.domain.passages import sentences


def _position(token: str, **logprobs: float) -> Position:
    top = tuple(sorted(logprobs.items(), key=lambda pair: -pair[1]))
    return Position(token, logprobs[token], top)


def _completion(*prompt: Position, output: tuple[Position, ...] = (), text: str = "") -> Completion:
    return Completion(text=text, prompt=prompt, output=output)


SURE = _position("a", a=math.log(0.8), b=math.log(0.15), c=math.log(0.04))


def test_a_servers_answer_is_read_with_the_prompts_own_token_first() -> None:
    data = {
        "choices": [
            {
                "text": " x y",
                "prompt_logprobs": [
                    None,
                    {"7": {"logprob": -5.0, "rank": 9}, "3": {"logprob": -0.5, "rank": 1}},
                ],
                "logprobs": {
                    "tokens": ["token_id:4", "token_id:5"],
                    "token_logprobs": [-0.1, -0.2],
                    "top_logprobs": [
                        {"token_id:4": -0.1},
                        {"token_id:6": -0.3, "token_id:5": -0.2},
                    ],
                },
            }
        ]
    }
    found = parse_completion(data)
    assert found.prompt == (Position("7", -5.0, (("3", -0.5), ("7", -5.0))),)
    assert [position.token for position in found.output] == ["token_id:4", "token_id:5"]
    assert found.output[1].top[0] == ("token_id:5", -0.2)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"choices": []},
        {"choices": [{"text": "x", "prompt_logprobs": [{"1": {}}]}]},
        {"choices": [{"text": "x", "logprobs": {"tokens": ["a"]}}]},
        {"choices": [{"text": "x", "logprobs": {"tokens": ["a"], "token_logprobs": [None]}}]},
        {"error": "no"},
        [],
    ],
)
def test_an_answer_without_what_was_asked_for_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="lacks what was asked for"):
        parse_completion(data)


def test_equal_arms_have_no_distance() -> None:
    found = agreement("prefill", [(_completion(SURE, SURE), _completion(SURE, SURE))])
    assert found is not None
    assert (found.positions, found.mean_kl, found.max_abs_delta, found.strays) == (2, 0.0, 0.0, 0)
    assert (found.top1_agreement, found.decided, found.decided_flips) == (1.0, 2, 0)


def test_divergence_is_that_of_the_merged_distribution() -> None:
    other = _position("a", a=math.log(0.6), b=math.log(0.3), d=math.log(0.05))
    found = agreement("prefill", [(_completion(SURE), _completion(other))])
    assert found is not None
    # Shared: a and b; everything else is one outcome of 0.05 against 0.10.
    expected = 0.8 * math.log(0.8 / 0.6) + 0.15 * math.log(0.15 / 0.3) + 0.05 * math.log(0.05 / 0.1)
    assert found.mean_kl == pytest.approx(expected)
    assert found.max_abs_delta == pytest.approx(math.log(0.8 / 0.6))


def test_a_decided_position_that_flips_is_counted_and_a_near_tie_is_not() -> None:
    near = _position("a", a=math.log(0.41), b=math.log(0.40))
    flipped_near = _position("a", a=math.log(0.40), b=math.log(0.41))
    flipped = _position("a", b=math.log(0.8), a=math.log(0.15))
    pairs = [(_completion(near, SURE), _completion(flipped_near, flipped))]
    found = agreement("prefill", pairs)
    assert found is not None
    assert (found.decided, found.decided_flips, found.top1_agreement) == (1, 1, 0.0)


def test_the_baseline_says_which_positions_are_decided() -> None:
    near = _position("a", a=math.log(0.41), b=math.log(0.40))
    for left, right, decided in ((SURE, near, 1), (near, SURE, 0)):
        found = agreement("prefill", [(_completion(left), _completion(right))])
        assert found is not None and found.decided == decided


def test_a_candidate_that_leaves_nothing_for_the_rest_has_a_finite_divergence() -> None:
    certain = _position("a", a=math.log(0.8), b=math.log(0.2))
    found = agreement("prefill", [(_completion(SURE), _completion(certain))])
    assert found is not None
    assert 0.01 * math.log(0.01 / 1e-7) < found.max_kl < 1


def test_lists_that_share_less_than_half_are_strays() -> None:
    left = _position("a", a=-1.0, b=-1.5, c=-2.0, d=-2.5, e=-3.0)
    right = _position("a", a=-1.0, b=-1.5, v=-2.0, w=-2.5, x=-3.0)
    found = agreement("prefill", [(_completion(left), _completion(right))])
    assert found is not None
    assert (found.strays, found.largest_error) == (1, 1.0)


def test_the_median_is_of_all_positions_and_unusable_ones_are_left_out() -> None:
    wrong = _position("a", a=math.log(0.04), b=math.log(0.15), c=math.log(0.8))
    broken = _position("a", a=math.nan, b=-1.0)
    left = _completion(SURE, SURE, SURE, SURE)
    found = agreement("prefill", [(left, _completion(SURE, wrong, wrong, broken))])
    assert found is not None
    assert (found.positions, found.strays) == (3, 2)
    assert found.median_error == found.largest_error > 1


def test_the_texts_own_tokens_are_compared_where_they_are_the_same() -> None:
    other = _position("b", a=math.log(0.7), b=math.log(0.25))
    pairs = [(_completion(output=(SURE,)), _completion(output=(other,)))]
    found = agreement("decode", pairs)
    assert found is not None
    assert (found.positions, found.max_abs_delta) == (1, 0.0)


def test_a_few_strays_among_many_positions_differ() -> None:
    """So few that neither mean divergence nor flips say it: another page at 2 of 150."""
    flat = _position("a", **{name: -5.0 - 0.01 * i for i, name in enumerate("abcdefghij")})
    wrong = _position("a", **{name: -5.1 + 0.01 * i for i, name in enumerate("abcdefghij")})
    output = _completion(output=(flat,) * 150, text="t").output
    baseline, candidate = (
        dataclasses.replace(
            answers, completions=(_completion(*places, output=output, text="t"),), repeated=()
        )
        for answers, places in (
            (_answers("baseline"), [flat] * 150),
            (_answers("candidate"), [*[flat] * 148, wrong, wrong]),
        )
    )
    report = _judge(candidate, baseline=baseline)
    assert report.verdict == "differs"
    assert "2 of 150 positions differ as if they saw another context" in report.reason


def test_a_flat_model_is_judged_by_its_own_spread() -> None:
    """All logits within 0.1 nats: a wrong context moves no divergence and yet is a stray."""
    before = _position("a", **{name: -5.0 - 0.01 * i for i, name in enumerate("abcdefghij")})
    rounded = _position("a", **{name: -5.0005 - 0.01 * i for i, name in enumerate("abcdefghij")})
    wrong = _position("a", **{name: -5.1 + 0.01 * i for i, name in enumerate("abcdefghij")})
    near = agreement("prefill", [(_completion(before), _completion(rounded))])
    far = agreement("prefill", [(_completion(before), _completion(wrong))])
    assert near is not None and far is not None
    assert (near.strays, far.strays) == (0, 1)
    assert far.mean_kl < Limits().max_mean_kl
    assert near.median_error < 0.05
    assert far.median_error > 1.0


def test_lists_without_common_tokens_are_strays() -> None:
    other = _position("x", x=-0.1, y=-2.0, z=-3.0)
    found = agreement("prefill", [(_completion(SURE), _completion(other))])
    assert found is not None and found.strays == 1


def test_outputs_count_up_to_the_first_token_that_differs() -> None:
    left, right = _position("a", a=-0.1, b=-3.0), _position("b", a=-3.0, b=-0.1)
    pair = (_completion(output=(left, left, left)), _completion(output=(left, right, left)))
    found = agreement("decode", [pair])
    assert found is not None and found.positions == 2
    assert found.decided_flips == 1


def test_not_a_number_is_counted_and_impossible_tokens_are_not() -> None:
    bad = Position("a", math.nan, (("a", math.nan),))
    impossible = Position("a", -9999.0, (("a", -9999.0), ("b", -0.1)))
    assert not_finite(_completion(SURE, impossible, bad)) == 1


def test_items_are_the_same_for_the_same_seed_and_answer_themselves() -> None:
    items = make_items(5, seed=3, filler_sentences=12)
    assert items == make_items(5, seed=3, filler_sentences=12)
    assert items != make_items(5, seed=4, filler_sentences=12)
    assert [item.task for item in items] == [task for task in TASKS for _ in range(5)]
    assert all(is_right(item, f" {item.answer}\nand more") for item in items)
    assert not any(is_right(item, "") or is_right(item, "no idea") for item in items)


def test_arithmetic_and_order_are_true() -> None:
    for item in make_items(20, seed=1, filler_sentences=3):
        question = item.prompt.splitlines()[-1]
        if item.task == "arithmetic":
            left, sign, right = question.removesuffix(" =").split()
            assert int(item.answer) == int(left) + (int(right) if sign == "+" else -int(right))
        if item.task == "ordering":
            numbers = question.removeprefix("From small to large: ").removesuffix(" ->").split(", ")
            assert item.answer.split(", ") == sorted(numbers, key=int)
        if item.task == "copy":
            assert question == f"Copy exactly: {item.answer} ->"


def test_needles_lie_from_the_beginning_to_the_end() -> None:
    items = [item for item in make_items(5, seed=1, filler_sentences=40) if item.task == "needle"]
    places = [item.prompt.index(item.answer) / len(item.prompt) for item in items]
    assert places == sorted(places)
    assert places[0] < 0.05 and 0.4 < places[2] < 0.6 and places[-1] > 0.85


@pytest.mark.parametrize(
    ("given", "right"),
    [(" 42", True), ("42.", True), ("42 is", True), ("420", False), ("4 2", False), ("-42", False)],
)
def test_numbers_end_where_they_end(given: str, right: bool) -> None:
    item = TaskItem(task="arithmetic", number=0, prompt="", answer="42", max_tokens=4)
    assert is_right(item, given) is right


def test_passages_differ_by_seed_only() -> None:
    assert sentences(30, "a") == sentences(30, "a")
    assert sentences(30, "a") != sentences(30, "b")


ITEMS = make_items(16, seed=1, filler_sentences=4)


def _answers(
    arm: Arm, position: Position = SURE, right: float = 1.0, text: str = "t"
) -> ArmAnswers:
    one = _completion(*[position] * 150, output=(position,) * 150, text=text)
    solved = tuple(item.number < 16 * right for item in ITEMS)
    return ArmAnswers(arm=arm, completions=(one,), repeated=(one,), right=solved)


def _judge(
    candidate: ArmAnswers, *gates: Gate, baseline: ArmAnswers | None = None
) -> AccuracyReport:
    return judge_accuracy("m", baseline or _answers("baseline"), candidate, ITEMS, Limits(), gates)


def test_equal_answers_agree() -> None:
    report = _judge(_answers("candidate"))
    assert (report.verdict, report.answer_is_no) == ("agrees", False)
    assert {gate.state for gate in report.gates} == {"passed"}
    assert (report.same_text, report.prompts) == (1, 1)


def test_another_distribution_differs_and_says_how_much() -> None:
    flat = _position("a", a=math.log(0.4), b=math.log(0.35), c=math.log(0.2))
    report = _judge(_answers("candidate", flat))
    assert report.verdict == "differs"
    assert "prefill logprobs agree: mean KL 0.35 nats" in report.reason


def test_a_lost_task_differs_and_a_few_lost_items_do_not() -> None:
    assert _judge(_answers("candidate", right=0.5)).verdict == "differs"
    few = _judge(_answers("candidate", right=15 / 16))
    assert few.verdict == "agrees"
    assert [(score.lost, score.gained) for score in few.tasks] == [(1, 0)] * 4
    assert few.tasks[0].lost_at_most == pytest.approx(0.302, abs=1e-3)


def test_several_tasks_share_the_chance_of_a_false_loss() -> None:
    """Five items lost of sixteen and none gained: p = 0.03 for one task, no news among four."""
    five = _judge(_answers("candidate", right=11 / 16))
    assert [round(score.p_value, 3) for score in five.tasks] == [0.031] * 4
    assert five.verdict == "agrees"
    assert _judge(_answers("candidate", right=9 / 16)).verdict == "differs"


@pytest.mark.parametrize("step", [1, -1], ids=["fewer", "reversed"])
def test_prompts_of_other_tokens_are_not_comparable(step: int) -> None:
    places = tuple(dataclasses.replace(SURE, token=str(at)) for at in range(150))
    other = places[:-1] if step > 0 else places[::-1]
    baseline, candidate = (
        dataclasses.replace(
            answers,
            completions=(dataclasses.replace(answers.completions[0], prompt=prompt),),
        )
        for answers, prompt in ((_answers("baseline"), places), (_answers("candidate"), other))
    )
    report = _judge(candidate, baseline=baseline)
    assert report.verdict == "not comparable"
    assert report.reason == "same prompt tokens: 1 of 1 prompts are other tokens in the candidate"


def test_tasks_that_the_baseline_cannot_do_say_nothing() -> None:
    report = _judge(_answers("candidate", right=0), baseline=_answers("baseline", right=0))
    assert report.verdict == "agrees"
    assert "say nothing" in report.notes[0]
    assert (
        next(gate for gate in report.gates if gate.name == "tasks not lost").state == "not checked"
    )


def test_unproved_servers_and_too_few_positions_are_not_comparable() -> None:
    red = Gate(name="markers of the candidate", state="failed", evidence="no kernel hit")
    report = _judge(_answers("candidate"), red)
    assert (report.verdict, report.reason) == (
        "not comparable",
        "markers of the candidate: no kernel hit",
    )
    short = _completion(SURE, output=(SURE,), text="t")
    few = [
        dataclasses.replace(_answers(arm), completions=(short,), repeated=())
        for arm in ("baseline", "candidate")
    ]
    report = _judge(few[1], baseline=few[0])
    assert report.verdict == "not comparable" and "1 prefill positions" in report.reason


def test_a_candidate_that_changes_its_mind_differs() -> None:
    candidate = _answers("candidate")
    other = _completion(text="another")
    report = _judge(dataclasses.replace(candidate, repeated=(other,)))
    assert report.verdict == "differs" and "asked twice" in report.reason
    restless = dataclasses.replace(_answers("baseline"), repeated=(other,))
    assert _judge(dataclasses.replace(candidate, repeated=(other,)), baseline=restless).verdict == (
        "agrees"
    )


def test_the_harness_command_names_the_running_server() -> None:
    command = lm_eval_command("org/model", "http://127.0.0.1:8000/v1")
    assert "base_url=http://127.0.0.1:8000/v1/completions" in command
    assert "model=org/model" in command
