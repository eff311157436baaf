"""hwtune simulate --batch: scenarios in, their steps out, one line each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hwtune.domain.errors import HwtuneError, InputError
from hwtune.domain.scheduler.records import (
    recorded,
    runner_options,
    scenario_record,
    step_record,
)
from hwtune.domain.scheduler.values import Scenario
from hwtune.io.batch import read_cases
from hwtune.io.scenarios import read_scenario

Play = Callable[[Mapping[str, Any], Scenario], dict[str, Any]]


def batch_records(
    reference: str, version: str | None, *, oracle: bool, python: str | None
) -> Iterator[dict[str, Any]]:
    """The record of every line of a JSONL file; an error carries its line.

    Raises:
        InputError: the file cannot be read.
        MissingDependencyError: the oracle is asked for and there is no vLLM.
    """
    with contextlib.ExitStack() as stack:
        play: Play = scenario_record
        if oracle:
            from hwtune.adapters.vllm.oracle import oracle as start

            asked = stack.enter_context(start(python))

            def play(given: Mapping[str, Any], scenario: Scenario) -> dict[str, Any]:
                return _oracle_record(given, scenario, asked.play(scenario))

        for line, case in read_cases(reference):
            yield _answer(line, case, version, play)


def _answer(
    line: int, case: Mapping[str, Any] | InputError, version: str | None, play: Play
) -> dict[str, Any]:
    name = None if isinstance(case, InputError) else case.get("name")
    try:
        if isinstance(case, InputError):
            raise case
        return play(case, read_scenario(case, version))
    except InputError as error:
        shown = name if isinstance(name, str) else None
        return {"name": shown, "line": line, "error": _error(error)}


def _error(error: HwtuneError) -> dict[str, str]:
    return {"class": type(error).__name__, "message": str(error)}


def _oracle_record(
    given: Mapping[str, Any], scenario: Scenario, answer: Mapping[str, Any]
) -> dict[str, Any]:
    options = runner_options(scenario.config)
    prompts = {request.id: request.prompt_len for request in scenario.requests}
    steps = [
        step_record(
            step,
            [
                (n, computed, drafts, prompts[name])
                for name, n, computed, drafts, _ in step["sched"]
            ],
            options,
        )
        for step in answer["steps"]
    ]
    sizes = ("scheduler_block_size", "hash_block_size", "num_lookahead_tokens")
    timings = ("build_ms", "run_ms", "schedule_ms")
    outcome = {"status": answer["status"], **{key: answer[key] for key in timings}}
    record = recorded(given, scenario, [answer[size] for size in sizes], outcome, steps)
    return {**record, "vllm": answer["vllm"]}
