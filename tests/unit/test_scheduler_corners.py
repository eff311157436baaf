"""Corners of the scheduler that random scenarios found; every expectation is vLLM 0.32's own."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from hwtune.domain.errors import InputError
from hwtune.domain.scheduler.live import Live
from hwtune.domain.scheduler.plan import Pick, Plan
from hwtune.domain.scheduler.simulation import Run
from hwtune.domain.scheduler.values import Request
from hwtune.io.scenarios import read_scenario

FULL = {"type": "full", "block_size": 1}
STATE = {"type": "mamba", "block_size": 1, "mode": "align"}


def run(
    groups: list[dict[str, Any]],
    requests: list[dict[str, Any]],
    *,
    num_blocks: int = 200,
    **config: Any,
) -> Run:
    base = {"max_num_batched_tokens": 64, "max_num_seqs": 4, "max_model_len": 64}
    return Run(
        read_scenario(
            {
                "config": {**base, **config},
                "kv": {"num_blocks": num_blocks, "groups": groups},
                "requests": requests,
            }
        )
    )


def test_a_prefix_ends_with_the_prompt_not_in_the_output() -> None:
    """What a short request generated is its own, however long the prefix that it was cut from."""
    short = {"id": "a", "prompt_len": 3, "output_len": 9, "prefix_id": "p", "prefix_len": 40}
    longer = {**short, "id": "b", "prompt_len": 30, "arrival_step": 20}
    steps = list(run([FULL], [short, longer], prefix_caching=True).steps())
    (first,) = [row for step in steps for row in step.rows if row.id == "b" and row.kind == "new"]
    assert (first.computed, first.tokens) == (3, 27)


def test_requests_that_are_preempted_in_turn_for_ever_are_stuck() -> None:
    """A request that can never take its last token holds blocks that the other one needs."""
    immovable = {"id": "a", "prompt_len": 70, "output_len": 1}
    other = {"id": "b", "prompt_len": 40, "output_len": 2}
    found = run(
        [FULL],
        [immovable, other],
        num_blocks=100,
        max_num_batched_tokens=24,
        reserve_full_isl=False,
    )
    steps = list(islice(found.steps(), 500))
    assert found.status == "stuck"
    assert found.stall is not None
    assert found.stall.waiting == ("a", "b")
    assert [step.preempted for step in steps if step.preempted] == [("b",)] * 4
    assert not any(step.out for step in steps)


def test_prefills_that_go_on_between_preemptions_are_not_stuck() -> None:
    """The last request gives way again and again while the first one still computes its prompt."""
    first = {"id": "a", "prompt_len": 60, "output_len": 1}
    other = {"id": "b", "prompt_len": 6, "output_len": 1}
    found = run(
        [FULL],
        [first, other],
        num_blocks=64,
        max_num_batched_tokens=4,
        long_prefill_token_threshold=2,
        reserve_full_isl=False,
    )
    steps = list(found.steps())
    assert found.status == "ok"
    assert sum(len(step.finished) for step in steps) == 2


SPECULATIVE: dict[str, Any] = {"spec": {"k": 2, "method": "ngram", "accept": [0]}}
BESIDE = [
    {"id": "a", "prompt_len": 1, "output_len": 20},
    {"id": "b", "prompt_len": 1, "output_len": 5, "arrival_step": 2},
]


def test_align_mode_drops_padding_that_the_threshold_cuts() -> None:
    found = run(
        [FULL, STATE],
        BESIDE,
        prefix_caching=True,
        long_prefill_token_threshold=1,
        **SPECULATIVE,
    )
    rows = [row for step in found.steps() for row in step.rows if row.kind == "new"]
    assert [(row.id, row.tokens, row.drafts) for row in rows] == [("a", 1, 0), ("b", 1, 0)]


def test_padding_that_the_threshold_cuts_fails_elsewhere_as_in_vllm() -> None:
    found = run([FULL], BESIDE, long_prefill_token_threshold=2, **SPECULATIVE)
    with pytest.raises(InputError, match=r"threshold 2 is below the 3 tokens of a verification"):
        list(found.steps())


def test_a_threshold_that_leaves_room_for_padding_changes_nothing() -> None:
    found = run([FULL], BESIDE, long_prefill_token_threshold=3, **SPECULATIVE)
    rows = [row for step in found.steps() for row in step.rows if row.kind == "new"]
    assert [(row.id, row.tokens, row.drafts) for row in rows] == [("a", 1, 0), ("b", 3, 2)]


@pytest.mark.parametrize(("budget", "first"), [(8, (4, 8)), (7, (0, 4))])
def test_a_prompt_waits_for_a_whole_block_unless_no_step_has_one(
    budget: int, first: tuple[int, int]
) -> None:
    page = {"block_size": 8}
    requests = [
        {"id": "a", "prompt_len": 3, "output_len": 4},
        {"id": "b", "prompt_len": 40, "output_len": 1},
    ]
    groups = [{**FULL, **page}, {**STATE, **page}]
    found = run(groups, requests, max_num_batched_tokens=budget, prefix_caching=True)
    taken = [
        (step.index, row.tokens) for step in found.steps() for row in step.rows if row.id == "b"
    ]
    assert taken[0] == first


@pytest.mark.parametrize(("adaptive", "chunk"), [(False, 4), (True, 32)])
def test_an_adaptive_threshold_leaves_everybody_a_fair_share(adaptive: bool, chunk: int) -> None:
    requests = [{"id": name, "prompt_len": 40, "output_len": 1} for name in "ab"]
    found = run([FULL], requests, long_prefill_token_threshold=4, long_prefill_adaptive=adaptive)
    first = next(iter(found.steps()))
    assert [row.tokens for row in first.rows] == [chunk, chunk]


def test_a_victims_tokens_and_draft_slots_come_back() -> None:
    plan = Plan(tick=0, budget=20, inputs=30, long_prefill=0)
    for name, tokens in (("a", 3), ("b", 4), ("c", 5)):
        live = Live(Request(id=name, prompt_len=9, output_len=1), 0, 0.0, 1)
        pick = Pick(live=live, tokens=tokens, drafts=0, kind="running", computed=0)
        plan.charge(pick, live.entry(0, tokens, 0, "running"), 2)
    assert (plan.budget, plan.inputs) == (8, 12)
    plan.refund(plan.lives[1], 2)
    assert (plan.budget, plan.inputs) == (12, 18)
    assert [plan.picks[place].live.id for place in range(2)] == ["a", "c"]
    plan.refund(Live(Request(id="d", prompt_len=9, output_len=1), 0, 0.0, 1), 2)
    assert (plan.budget, plan.inputs) == (12, 18)


def test_a_window_is_never_cached_inside_a_block() -> None:
    """Else its block would outlive attention's, which "c" finds again."""
    groups = [
        {"type": "full", "block_size": 16},
        {"type": "sliding_window", "block_size": 32, "window": 100},
    ]
    first = {"id": "a", "prompt_len": 63, "output_len": 4, "prefix_id": "p", "prefix_len": 63}
    requests = [
        first,
        {"id": "b", "prompt_len": 40, "output_len": 1, "arrival_step": 10},
        {**first, "id": "c", "arrival_step": 20},
    ]
    found = run(groups, requests, num_blocks=9, max_model_len=128, prefix_caching=True)
    rows = [row for step in found.steps() for row in step.rows if row.kind == "new"]
    assert [(row.id, row.computed) for row in rows] == [("a", 0), ("b", 0), ("c", 32)]


@pytest.mark.parametrize(("release", "tokens"), [("0.27.1", 64), ("0.28.0", 61), ("0.32.0", 61)])
def test_a_drafters_inputs_count_from_0_28_on(release: str, tokens: int) -> None:
    spec = {"k": 3, "method": "dflash", "accept": [0]}
    given = {
        "vllm": release,
        "config": {
            "max_num_batched_tokens": 64,
            "max_num_seqs": 4,
            "max_model_len": 256,
            "spec": spec,
        },
        "kv": {"num_blocks": 200, "groups": [{"type": "full", "block_size": 16}]},
        "requests": [{"id": "a", "prompt_len": 200, "output_len": 1}],
    }
    first = next(iter(Run(read_scenario(given)).steps()))
    assert (first.total, first.budget_left) == (tokens, 64 - tokens)
