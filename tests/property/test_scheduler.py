"""What must hold of every run of the simulated scheduler, whatever the scenario."""

from __future__ import annotations

from random import Random
from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from hwtune.domain.scheduler.engine import Engine
from hwtune.domain.scheduler.simulation import Run, simulate
from hwtune.domain.scheduler.values import Scenario, Step
from hwtune.io.scenarios import read_scenario
from tests.scheduler_scenarios import flat, random_scenario


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    return read_scenario(random_scenario(Random(draw(st.integers(0, 2**32)))))


@given(scenarios())
def test_budgets_and_limits_hold_in_every_step(scenario: Scenario) -> None:
    config = scenario.config
    most = config.max_num_scheduled_tokens or config.max_num_batched_tokens
    for step in simulate(scenario):
        assert step.total == sum(row.tokens for row in step.rows) <= most
        assert step.budget_left == most - step.total
        assert all(row.tokens > 0 for row in step.rows)
        assert len(step.running) <= (config.max_num_active_seqs or config.max_num_seqs)
        assert all(row.computed + row.tokens <= config.max_model_len for row in step.rows)


@given(scenarios())
def test_no_block_is_lost_or_held_twice(scenario: Scenario) -> None:
    shared = scenario.config.prefix_caching
    for step in simulate(scenario):
        held = sum(sum(column) for column in step.held.values())
        used = scenario.num_blocks - 1 - step.free
        assert 0 <= used <= held if shared else used == held
        assert set(step.held) == set(step.blocks) == set(step.running)
        assert all(
            0 <= have <= length
            for name, columns in step.held.items()
            for have, length in zip(columns, step.blocks[name], strict=True)
        )


@given(scenarios())
def test_every_request_finishes_or_is_said_to_be_stuck(scenario: Scenario) -> None:
    run = Run(scenario)
    got: dict[str, int] = {}
    finished: list[str] = []
    for step in run.steps():
        finished += step.finished
        for name, tokens in step.out.items():
            got[name] = got.get(name, 0) + tokens
    stuck = run.stall.waiting if run.stall else ()
    assert sorted([*finished, *stuck]) == sorted(request.id for request in scenario.requests)
    assert (run.status == "stuck") == bool(stuck)
    limit = scenario.config.max_model_len
    for request in scenario.requests:
        if request.id in finished:
            # The first token comes even where the prompt already reaches the limit.
            room = max(min(request.output_len, limit - request.prompt_len), 1)
            assert got[request.id] == room
    if run.stall:
        assert run.stall.reason.startswith(f"{run.stall.waiting[0]}: ")


@given(scenarios())
def test_the_end_leaves_the_pool_as_it_was(scenario: Scenario) -> None:
    run = Run(scenario)
    last = list(run.steps())[-1]
    if run.stall is None:
        assert last.free_after == scenario.num_blocks - 1
        assert not last.running


@given(scenarios())
def test_first_come_is_first_admitted(scenario: Scenario) -> None:
    """Preempted requests come back first; among the new ones nobody overtakes."""
    if scenario.config.policy != "fcfs":
        return
    arrivals = sorted(enumerate(scenario.requests), key=lambda pair: pair[1].arrival_step)
    expected = [request.id for _, request in arrivals]
    admitted = [row.id for step in simulate(scenario) for row in step.rows if row.kind == "new"]
    assert admitted == expected[: len(admitted)]


@given(scenarios())
def test_the_same_scenario_gives_the_same_steps(scenario: Scenario) -> None:
    assert _played(scenario) == _played(scenario)


@given(scenarios())
def test_resting_counters_change_nothing(scenario: Scenario) -> None:
    """Requests that only decode are not counted step by step; doing so gives the same."""
    with patch.object(Engine, "_eased", lambda self, live: False):
        counted = _played(scenario)
    assert _played(scenario) == counted


@given(scenarios())
def test_a_stretch_is_its_steps(scenario: Scenario) -> None:
    for stretch in Run(scenario).stretches():
        steps = list(stretch.steps())
        assert len(steps) == stretch.count
        if stretch.count > 1:
            assert all(step.rows[0].tokens == 1 and not step.finished for step in steps)
            assert [step.index for step in steps] == [
                *range(steps[0].index, steps[0].index + stretch.count)
            ]


def _played(scenario: Scenario) -> list[tuple[Any, ...]]:
    steps: list[Step] = list(simulate(scenario))
    return [flat(step) for step in steps]
