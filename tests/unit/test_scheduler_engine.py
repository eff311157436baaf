"""The pool of blocks, reasons of stalls, and requests that arrive while a run goes on."""

from __future__ import annotations

from typing import Any

import pytest

from hwtune.domain.errors import InputError
from hwtune.domain.scheduler.blocks import NULL, CountingPool, Pool
from hwtune.domain.scheduler.rules import rules_for
from hwtune.domain.scheduler.simulation import Run, Simulation
from hwtune.domain.scheduler.values import CacheGroup, Request, Scenario, SchedulerConfig


def scenario(*requests: Request, num_blocks: int = 100, **config: Any) -> Scenario:
    defaults = {"max_num_batched_tokens": 64, "max_num_seqs": 4, "max_model_len": 256}
    return Scenario(
        config=SchedulerConfig(**{**defaults, **config}),
        num_blocks=num_blocks,
        groups=(CacheGroup(kind="full", block_size_tokens=16),),
        requests=requests,
    )


def test_uncached_blocks_are_reused_before_cached_ones_and_the_latest_first() -> None:
    pool = Pool(4)
    first, second, third = pool.take(3)
    pool.put(second, (0, "prefix", 0), 16)
    pool.give([second])
    pool.give([third, first])
    assert pool.free == 3
    assert pool.take(3) == [third, first, second]
    assert pool.find((0, "prefix", 0)) is None


def test_a_cached_block_is_found_until_it_is_reused() -> None:
    pool = Pool(3)
    key = (0, "prefix", 0)
    (block,) = pool.take(1)
    pool.put(block, key, 16)
    pool.give([block])
    assert pool.find(key) is block
    pool.hold([block, NULL])
    assert (pool.free, block.refs) == (1, 1)
    pool.give([block])
    pool.take(2)
    assert pool.find(key) is None


def test_of_two_blocks_under_one_key_the_older_one_serves() -> None:
    pool = Pool(3)
    older, newer = pool.take(2)
    key = (0, "prefix", 0)
    pool.put(older, key, 16)
    pool.put(newer, key, 16)
    assert pool.find(key) is older
    pool.forget(older)
    assert pool.find(key) is newer


def test_the_counting_pool_counts_no_gaps() -> None:
    pool = CountingPool(10)
    taken = pool.take(4)
    pool.give([NULL, *taken[:3]])
    assert pool.free == 8


@pytest.mark.parametrize(
    ("config", "prompt", "blocks", "expected"),
    [
        ({}, 100, 5, "take 7 blocks"),
        ({"max_model_len": 64, "chunked_prefill": False}, 70, 50, "chunked prefill is off"),
        (
            {"max_model_len": 64, "max_num_batched_tokens": 32},
            64,
            50,
            "do not fit below max_model_len 64",
        ),
        ({"reserve_full_isl": False}, 100, 5, "take"),
    ],
)
def test_a_stall_names_its_reason(
    config: dict[str, Any], prompt: int, blocks: int, expected: str
) -> None:
    run = Run(
        scenario(Request(id="a", prompt_len=prompt, output_len=5), num_blocks=blocks, **config)
    )
    steps = list(run.steps())
    assert run.stall is not None
    assert expected in run.stall.reason
    assert len(steps) < 100


def test_requests_may_depend_on_what_finished() -> None:
    """A closed loop of one: the next request comes when the last one is done."""
    run = Simulation(scenario())
    left = [Request(id=f"r{i}", prompt_len=20, output_len=30) for i in range(3)]
    order: list[str] = []
    run.add(left.pop(0))
    while run.busy:
        stretch = run.advance(1000)
        assert stretch is not None
        assert len(stretch.first.running) <= 1
        for name in stretch.first.finished:
            order.append(name)
            if left:
                run.add(left.pop(0))
    assert order == ["r0", "r1", "r2"]


def test_a_stretch_stops_where_it_is_told_to() -> None:
    run = Simulation(scenario(max_num_seqs=1))
    run.add(Request(id="a", prompt_len=1, output_len=200))
    lengths: list[int] = []
    while run.busy and len(lengths) < 20:
        stretch = run.advance(3)
        assert stretch is not None
        lengths.append(stretch.count)
    assert max(lengths) == 3


@pytest.mark.parametrize(
    ("version", "since"),
    [("0.32.0", 32), ("0.40", 32), ("0.31.2", 28), ("v0.23.0rc1", 23), ("0.11.0", 11)],
)
def test_a_release_falls_into_the_newest_row_before_it(version: str, since: int) -> None:
    assert rules_for(version).since == (0, since)


def test_a_release_before_every_row_is_refused() -> None:
    with pytest.raises(InputError, match=r"modelled from 0\.11 on"):
        rules_for("0.10.2")
