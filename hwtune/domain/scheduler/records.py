"""Scenarios and their steps in the form of recorded runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hwtune.domain.scheduler.classify import BatchRow, RunnerOptions, ascend_classes, hygon_path
from hwtune.domain.scheduler.simulation import Run
from hwtune.domain.scheduler.values import Scenario, SchedulerConfig

_KEPT = ("name", "tags", "note")
"""Keys that a scenario's answer repeats as they are."""


def scenario_record(given: Mapping[str, Any], scenario: Scenario) -> dict[str, Any]:
    """Plays a scenario and returns its record.

    Args:
        given: the scenario as it was read; its configuration is repeated in the record.

    Raises:
        InputError: something in the scenario is not modelled.
    """
    run = Run(scenario)
    options = runner_options(scenario.config)
    steps = [
        step_record(
            {
                "step": step.index,
                "sched": [list(entry[:5]) for entry in step.shifted],
                "total": step.total,
                "budget_left": step.budget_left,
                "preempted": list(step.preempted),
                "running": list(step.running),
                "waiting": list(step.waiting),
                "blocks": {name: list(table) for name, table in step.blocks.items()},
                "held": {name: list(table) for name, table in step.held.items()},
                "free": step.free,
                "out": dict(step.out),
                "finished": list(step.finished),
                "free_after": step.free_after,
            },
            [
                (n, computed, drafts, prompt)
                for _, n, computed, drafts, _, prompt, _ in step.shifted
            ],
            options,
        )
        for step in run.steps()
    ]
    setup, stall = run.setup, run.stall
    sizes = (setup.scheduler_block, setup.hash_block, setup.lookahead)
    reason = {"reason": stall.reason} if stall else {}
    return recorded(given, scenario, sizes, {"status": run.status, **reason}, steps)


def recorded(
    given: Mapping[str, Any],
    scenario: Scenario,
    sizes: Sequence[int],
    outcome: Mapping[str, Any],
    steps: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """The record of a run.

    Args:
        sizes: scheduler block, hash block and lookahead, in tokens.
        outcome: status and reason.
    """
    names = ("scheduler_block_size", "hash_block_size", "num_lookahead_tokens")
    return {
        **{key: given[key] for key in _KEPT if key in given},
        "vllm": scenario.config.vllm_version,
        "config": given["config"],
        "kv": given["kv"],
        **dict(zip(names, sizes, strict=True)),
        "requests": given["requests"],
        **outcome,
        "num_steps": len(steps),
        "steps": list(steps),
    }


def runner_options(config: SchedulerConfig) -> RunnerOptions:
    """What a model runner knows of the configuration."""
    speculation = config.speculation
    return RunnerOptions(
        chunked_prefill=config.chunked_prefill,
        num_speculative_tokens=speculation.num_tokens if speculation else 0,
        speculative_method=speculation.method if speculation else None,
    )


def step_record(
    step: dict[str, Any], rows: Sequence[tuple[int, int, int, int]], options: RunnerOptions
) -> dict[str, Any]:
    """A step with its classes, in front of what its output brought.

    Args:
        rows: scheduled, computed and draft tokens and the prompt length of every row.
    """
    classes = dict(_classes([BatchRow(*row) for row in rows], options))
    late = ("out", "finished", "free_after")
    early = {key: value for key, value in step.items() if key not in late}
    return {**early, **classes, **{key: step[key] for key in late}}


def _classes(rows: Sequence[BatchRow], options: RunnerOptions) -> Iterator[tuple[str, Any]]:
    if not rows:
        yield from (("attn", None), ("hygon", None))
        return
    found = ascend_classes(rows, options)
    attention = {
        "v1": found.v1,
        "v1_returned": found.v1_returned,
        "v2": found.v2,
        "split": list(found.split),
        "gdn_split": list(found.gdn_split),
    }
    yield "attn", attention
    yield "hygon", hygon_path([row.scheduled_tokens for row in rows])
