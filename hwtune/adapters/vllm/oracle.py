"""Asks an installed vLLM's own scheduler to play scenarios, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hwtune.adapters.packages import require_package
from hwtune.adapters.vllm import oracle_child
from hwtune.domain.errors import ExternalFailureError, InputError, MissingDependencyError
from hwtune.domain.scheduler.values import CacheGroup, Request, Scenario

_OTHER_PYTHON = "name a Python that has it with --oracle-python"


class Oracle:
    """A running vLLM that answers one scenario at a time."""

    def __init__(self, process: subprocess.Popen[str], log: Any) -> None:
        self._process = process
        self._log = log

    def play(self, scenario: Scenario) -> dict[str, Any]:
        """``vllm`` (its version), block sizes, status, timings and steps, as recorded.

        Raises:
            InputError: vLLM refuses the scenario.
            ExternalFailureError: the process died.
        """
        answer = self._ask(scenario_request(scenario))
        if "error" in answer:
            error = answer["error"]
            message = f"vLLM {answer['vllm']} refuses it: {error['class']}: {error['message']}"
            raise InputError(message)
        return answer

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        if process.stdin is None or process.stdout is None:
            raise self._died()
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        except OSError:
            raise self._died() from None
        for line in process.stdout:
            if line.startswith(oracle_child.MARK):
                answer: dict[str, Any] = json.loads(line.removeprefix(oracle_child.MARK))
                return answer
        raise self._died()

    def _died(self) -> ExternalFailureError:
        status = self._process.wait()
        self._log.seek(0)
        last = (self._log.read().strip().splitlines() or ["no output"])[-1]
        if "No module named 'vllm'" in last:
            return _not_installed(str(self._process.args[0]))  # type: ignore[index, return-value]
        message = f"vLLM's scheduler did not answer (exit status {status}): {last[:300]}"
        return ExternalFailureError(message)


def _not_installed(python: str) -> MissingDependencyError:
    message = f"vLLM is not installed for {python}; {_OTHER_PYTHON}"
    return MissingDependencyError(message)


@contextmanager
def oracle(python: str | None = None) -> Iterator[Oracle]:
    """Starts a Python that has vLLM; it ends with the context.

    Args:
        python: the interpreter; this one when None.

    Raises:
        MissingDependencyError: that Python has no vLLM.
        ExternalFailureError: it cannot be started.
    """
    if python is None:
        require_package("vllm", "--oracle", _OTHER_PYTHON)
    command = [python or sys.executable, oracle_child.__file__]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                errors="replace",
            )
        except OSError as error:
            message = f"{command[0]}: cannot be started: {error.strerror}"
            raise ExternalFailureError(message) from None
        try:
            yield Oracle(process, log)
        finally:
            process.kill()
            process.communicate()


def scenario_request(scenario: Scenario) -> dict[str, Any]:
    """A scenario as the child reads it: the form of a recorded run, with every key."""
    config = scenario.config
    spec = config.speculation
    return {
        "config": {
            "max_num_batched_tokens": config.max_num_batched_tokens,
            "max_num_seqs": config.max_num_seqs,
            "max_model_len": config.max_model_len,
            "max_num_scheduled_tokens": config.max_num_scheduled_tokens,
            "max_num_active_seqs": config.max_num_active_seqs,
            "chunked_prefill": config.chunked_prefill,
            "long_prefill_token_threshold": config.long_prefill_token_threshold,
            "long_prefill_adaptive": config.long_prefill_adaptive,
            "policy": config.policy,
            "reserve_full_isl": config.reserve_full_isl,
            "watermark": config.watermark,
            "prefix_caching": config.prefix_caching,
            "async": config.async_scheduling,
            "spec": None
            if spec is None
            else {
                "k": spec.num_tokens,
                "method": spec.method,
                "accept": list(spec.accepted),
                "draft_lens": None if spec.drafted is None else list(spec.drafted),
            },
        },
        "kv": {
            "num_blocks": scenario.num_blocks,
            "groups": [_group(group) for group in scenario.groups],
            "prefix_match_unit": scenario.prefix_match_tokens,
            "retention": config.retention_tokens,
        },
        "requests": [_request(request) for request in scenario.requests],
    }


def _group(group: CacheGroup) -> dict[str, Any]:
    return {
        "type": group.kind,
        "block_size": group.block_size_tokens,
        "window": group.window_tokens,
        "mode": group.mode,
    }


def _request(request: Request) -> dict[str, Any]:
    return {
        "id": request.id,
        "arrival_step": request.arrival_step,
        "prompt_len": request.prompt_len,
        "output_len": request.output_len,
        "priority": request.priority,
        "prefix_id": request.prefix_id,
        "prefix_len": request.prefix_len,
    }
