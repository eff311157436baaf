"""Requests from tiers, requests one by one, and how they are paced."""

from __future__ import annotations

import random

import pytest

from hwtune.domain.errors import UsageError
from hwtune.domain.scheduler.play import play
from hwtune.domain.scheduler.values import CacheGroup, Scenario, SchedulerConfig, Stretch
from hwtune.domain.scheduler.workloads import (
    Duration,
    WorkItem,
    Workload,
    fit,
    parse_output_lengths,
    parse_request,
    poisson,
    share_prefix,
    tier_items,
)
from hwtune.domain.workload import parse_tier


def item(name: str, prompt: int, output: int, **more: object) -> WorkItem:
    return WorkItem(id=name, prompt_tokens=prompt, output_tokens=output, **more)  # type: ignore[arg-type]


def scenario(budget: int = 64, blocks: int = 1000) -> Scenario:
    config = SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=8, max_model_len=512)
    group = CacheGroup(kind="full", block_size_tokens=16)
    return Scenario(config=config, num_blocks=blocks, groups=(group,))


class Seen:
    """Who was sent before which step, and who was in a step together."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.sent_at: dict[str, int] = {}
        self.together: list[tuple[str, ...]] = []

    def sent(self, sent: WorkItem) -> None:
        self.order.append(sent.id)
        self.sent_at[sent.id] = len(self.together)

    def add(self, stretch: Stretch) -> None:
        for step in stretch.steps():
            self.together.append((*step.running, *step.waiting))


def test_tiers_hold_prompt_and_output_and_follow_the_seed() -> None:
    tier = parse_tier("4-8K")
    outputs = parse_output_lengths("64-256")
    items = tier_items([tier], 50, outputs, 7)
    assert items == tier_items([tier], 50, outputs, 7)
    assert items != tier_items([tier], 50, outputs, 8)
    for one in items:
        assert one.prompt_tokens >= 4096
        assert one.prompt_tokens + one.output_tokens <= 8192
        assert 64 <= one.output_tokens <= 256
    with pytest.raises(UsageError, match="leave no room"):
        tier_items([parse_tier("10-20")], 2, parse_output_lengths("20"), 1)


def test_output_lengths() -> None:
    rng = random.Random(1)
    drawn = [parse_output_lengths("mean:100").draw(rng) for _ in range(4000)]
    assert 92 < sum(drawn) / len(drawn) < 108
    assert min(drawn) >= 1
    assert max(drawn) <= 800
    assert parse_output_lengths("5").draw(rng) == 5
    for text in ("", "0", "9-3", "mean:", "a-b", "1-2-3"):
        with pytest.raises(UsageError):
            parse_output_lengths(text)


def test_poisson_arrivals_have_the_rate_that_was_asked_for() -> None:
    items = poisson([item(f"r{i}", 1, 1) for i in range(4000)], 20.0, 1)
    times = [one.arrival_ms for one in items]
    assert times == sorted(times)
    assert 47.0 < times[-1] / len(times) < 53.0


def test_requests_given_one_by_one() -> None:
    assert parse_request("12:2@5", 27) == item("AB", 12, 2, arrival_step=5)
    assert parse_request("3:1", 0).id == "A"
    for text in ("", "3", "0:1", "1:0", "a:b", "1:1@x", "1:1@-2"):
        with pytest.raises(UsageError):
            parse_request(text, 0)


def test_a_shared_prefix_is_no_longer_than_the_prompt() -> None:
    items = share_prefix([item("a", 100, 1), item("b", 30, 1)], 64, 1, 1)
    assert [(one.prefix_id, one.prefix_tokens) for one in items] == [
        ("prefix0", 64),
        ("prefix0", 30),
    ]


def test_prompts_that_vllm_would_refuse_are_left_out() -> None:
    kept, refused = fit([item("a", 511, 9), item("b", 512, 1)], 512)
    assert ([one.id for one in kept], refused) == (["a"], 1)


def test_a_closed_loop_never_has_more_in_flight_and_keeps_the_order() -> None:
    items = tuple(item(f"r{i}", 20 + 7 * i, 3 + i) for i in range(9))
    seen = Seen()
    workload = Workload(items=items, pacing="closed loop", concurrency=3, title="")
    played = play(scenario(), workload, (seen,))
    assert seen.order == [one.id for one in items]
    assert max(map(len, seen.together)) == 3
    assert played.finished == 9
    assert played.stall is None


def test_a_block_waits_for_the_one_before() -> None:
    items = tuple(item(f"r{i}", 20, 2 + 5 * (i % 2), block=i // 2) for i in range(4))
    seen = Seen()
    play(scenario(), Workload(items=items, pacing="closed loop", concurrency=2, title=""), (seen,))
    for names in seen.together:
        assert len({int(name[1:]) // 2 for name in names}) == 1


def test_arrivals_by_the_clock_wait_for_their_time() -> None:
    duration = Duration(step_ms=10.0, token_ms=0.0)
    items = (item("a", 8, 4), item("b", 8, 2, arrival_ms=15.0), item("c", 8, 2, arrival_ms=500.0))
    seen = Seen()
    workload = Workload(items=items, pacing="timed", title="")
    played = play(scenario(), workload, (seen,), duration)
    assert seen.sent_at["b"] == 2
    assert played.steps == 4 + 2
    # The idle time before c passes without a step.
    assert played.simulated_ms == 500.0 + 2 * 10.0
    with pytest.raises(UsageError, match="--step-ms"):
        play(scenario(), workload, ())


def test_steps_without_anyone_are_jumped_over() -> None:
    items = (item("a", 8, 1), item("b", 8, 1, arrival_step=10**9))
    played = play(scenario(), Workload(items=items, pacing="stepped", title=""), ())
    assert (played.steps, played.finished) == (2, 2)


def test_a_request_that_outgrows_the_pool_is_said_to_be_stuck() -> None:
    """It preempts itself, starts again and comes to the same point for ever."""
    workload = Workload(items=(item("r", 100, 300),), pacing="closed loop", concurrency=1, title="")
    played = play(scenario(blocks=10), workload, ())
    assert played.finished == 0
    assert played.stall is not None


def test_a_request_that_never_fits_is_said_to_be_stuck() -> None:
    items = (item("big", 400, 2), item("small", 8, 2))
    workload = Workload(items=items, pacing="closed loop", concurrency=2, title="")
    played = play(scenario(blocks=10), workload, ())
    assert played.finished == 0
    assert played.stall is not None
    assert "big" in played.stall.reason
