"""Drives vLLM's own scheduler offline; no model is loaded, its output is counted tokens.

Started as a file by ``hwtune.adapters.vllm.oracle`` under the Python that has vLLM, so it imports
nothing of hwtune. Reads one JSON scenario per line from standard input and answers each with one
marked JSON line. What differs between releases is asked of their own signatures.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MARK = "HWTUNE-ORACLE "
_PATIENCE_STEPS = 4
_PATIENCE_ROUNDS = 3


def _beside(name: str) -> Any:
    """A module next to this file, without its folder in the search path."""
    file = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_setup: Any = _beside("oracle_setup")


class Engine:
    """The scheduler of one scenario, and the model that stands in."""

    def __init__(self, scenario: dict[str, Any], folder: str) -> None:
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.structured_output import StructuredOutputManager

        self.asynchronous = scenario["config"].get("async", False)
        self.spec = scenario["config"].get("spec")
        config = _setup.vllm_config(scenario, folder)
        cache = _setup.cache_config(scenario)
        self.block, self.hash_block = _setup.block_sizes(scenario, cache, config)
        kind: Any = Scheduler
        if self.asynchronous:
            from vllm.v1.core.sched.async_scheduler import AsyncScheduler

            kind = AsyncScheduler
        arguments = {
            "vllm_config": config,
            "kv_cache_config": cache,
            "structured_output_manager": StructuredOutputManager(config),
            "block_size": self.block,
            "hash_block_size": self.hash_block,
            "log_stats": False,
        }
        # The async scheduler hands its arguments on unnamed.
        self.scheduler = kind(**_setup.known(Scheduler, arguments))
        self.lost: list[str] = []
        self._watch_preemptions()
        self.caching = scenario["config"].get("prefix_caching", False)
        self.budget = self.scheduler.max_num_scheduled_tokens
        self.verified: dict[str, int] = {}
        self.order = {request["id"]: i for i, request in enumerate(scenario["requests"])}
        self.prompts = _setup.Prompts()
        self.known: set[str] = set()
        self.schedule_s = 0.0

    def _watch_preemptions(self) -> None:
        preempt = getattr(self.scheduler, "_preempt_request", None)
        if preempt is None:
            return

        def watched(request: Any, *more: Any, **named: Any) -> Any:
            self.lost.append(request.request_id)
            return preempt(request, *more, **named)

        self.scheduler._preempt_request = watched

    # --- requests ---

    def add(self, request: dict[str, Any]) -> None:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        limits = SamplingParams(max_tokens=request["output_len"], ignore_eos=True)
        made = _setup.make(
            Request,
            request_id=request["id"],
            prompt_token_ids=self.prompts.tokens(request),
            sampling_params=limits,
            pooling_params=None,
            eos_token_id=None,
            multi_modal_kwargs=None,
            multi_modal_hashes=None,
            multi_modal_placeholders=None,
            client_index=0,
            arrival_time=float(self.order[request["id"]]),
            priority=request.get("priority", 0),
            block_hasher=self._hasher(),
        )
        self.scheduler.add_request(made)

    def _hasher(self) -> Any:
        if not self.caching:
            return None
        from vllm.v1.core import kv_cache_utils as utils

        with contextlib.suppress(Exception):
            utils.init_none_hash(hash)
        return utils.get_request_block_hasher(self.hash_block, _setup.hash_of)

    # --- steps ---

    def schedule(self) -> tuple[Any, dict[str, Any]]:
        """vLLM's output of one schedule, and the state right after it."""
        scheduler = self.scheduler
        self.lost.clear()
        status = {id: r.status.name for id, r in scheduler.requests.items()}
        start = time.perf_counter()
        output = scheduler.schedule()
        self.schedule_s += time.perf_counter() - start
        counts = output.num_scheduled_tokens
        drafts = output.scheduled_spec_decode_tokens
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        computed |= _cached_computed(output.scheduled_cached_reqs)
        kinds = {"WAITING": "new", "PREEMPTED": "resumed"}
        rows = [
            [id, n, computed[id], len(drafts.get(id, ())), kinds.get(status[id], "running")]
            for id, n in counts.items()
        ]
        total = output.total_num_scheduled_tokens
        waiting = [r.request_id for r in _waiting(scheduler)]
        if not hasattr(scheduler, "_preempt_request"):
            # Each victim went to the front of the queue, so the last one stands first.
            self.lost += [id for id in reversed(waiting) if status[id] == "RUNNING"]
        tables = {r.request_id: self._tables(r.request_id) for r in scheduler.running}
        return output, {
            "sched": rows,
            "total": total,
            "budget_left": self.budget - total,
            "preempted": list(self.lost),
            "running": [r.request_id for r in scheduler.running],
            "waiting": waiting,
            "blocks": {id: [len(column) for column in table] for id, table in tables.items()},
            "held": {
                id: [sum(not block.is_null for block in column) for column in table]
                for id, table in tables.items()
            },
            "free": self.free,
        }

    def _tables(self, id: str) -> list[Any]:
        managers = self.scheduler.kv_cache_manager.coordinator.single_type_managers
        return [manager.req_to_blocks.get(id, []) for manager in managers]

    @property
    def free(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def produced(self, output: Any) -> list[list[int]]:
        """One token for every request whose known tokens are computed, and accepted drafts."""
        scheduler = self.scheduler
        tokens: list[list[int]] = []
        for id in output.num_scheduled_tokens:
            request = scheduler.requests.get(id)
            if request is None:
                tokens.append([])
                continue
            waits = request.num_output_placeholders if self.asynchronous else 0
            complete = waits > 0 if self.asynchronous else _is_complete(request)
            drafts = len(output.scheduled_spec_decode_tokens.get(id, ()))
            accepted = self._accepted(id, drafts) if complete and drafts else 0
            tokens.append([self.prompts.next() for _ in range(1 + accepted)] if complete else [])
        return tokens

    def _accepted(self, id: str, drafts: int) -> int:
        accept: list[int] = self.spec["accept"]
        place = self.order[id] + self.verified.get(id, 0)
        self.verified[id] = self.verified.get(id, 0) + 1
        return min(accept[place % len(accept)], drafts)

    def update(self, output: Any, tokens: list[list[int]]) -> tuple[dict[str, int], list[str]]:
        """The tokens reach the scheduler; returns what each request got, and who ended."""
        from vllm.v1.outputs import ModelRunnerOutput

        ids = list(output.num_scheduled_tokens)
        made = _setup.make(
            ModelRunnerOutput,
            req_ids=ids,
            req_id_to_index={id: i for i, id in enumerate(ids)},
            sampled_token_ids=tokens,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        out, finished = {}, []
        for reply in self.scheduler.update_from_output(output, made).values():
            for one in reply.outputs:
                if one.new_token_ids:
                    out[one.request_id] = len(one.new_token_ids)
                if one.finish_reason is not None:
                    finished.append(one.request_id)
        if self.spec and not self.asynchronous:
            self._draft(ids, tokens)
        return out, finished

    def _draft(self, ids: list[str], tokens: list[list[int]]) -> None:
        from vllm.v1.outputs import DraftTokenIds

        lengths = self.spec.get("draft_lens")
        drafted = []
        for id in ids:
            place = self.order[id] + self.verified.get(id, 0)
            drafted.append(lengths[place % len(lengths)] if lengths else self.spec["k"])
        drafts = [[1] * n if got else [] for n, got in zip(drafted, tokens, strict=True)]
        self.scheduler.update_draft_token_ids(DraftTokenIds(ids, drafts))


def _is_complete(request: Any) -> bool:
    return bool(request.num_computed_tokens >= request.num_tokens)


def _waiting(scheduler: Any) -> list[Any]:
    queues = [getattr(scheduler, name, ()) for name in ("kv_holding_waiting", "skipped_waiting")]
    return [request for queue in (*queues, scheduler.waiting) for request in queue]


def _cached_computed(cached: Any) -> dict[str, int]:
    if isinstance(cached, list):
        return {one.req_id: one.num_computed_tokens for one in cached}
    return dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))


class Ends:
    """The same ends of a run that gets nowhere as in hwtune.domain.scheduler.progress."""

    def __init__(self) -> None:
        self._idle = 0
        self._outgrown: str | None = None
        self._rows: list[Any] = []
        self._rounds: Counter[str] = Counter()

    def hopeless(self, step: dict[str, Any]) -> bool:
        """Whether no later step can bring anything new, to be asked once per step."""
        self._idle = 0 if step["total"] or step["finished"] else self._idle + 1
        if step["out"]:
            self._outgrown = None
            self._rows.clear()
            self._rounds.clear()
        elif step["total"]:
            self._rows.append(step["sched"])
        if step["preempted"]:
            again = self._again(step)
            if again or not step["running"]:
                return again
        return self._idle >= _PATIENCE_STEPS

    def _again(self, step: dict[str, Any]) -> bool:
        around = repr((self._rows, step["preempted"], step["running"], step["waiting"]))
        self._rows.clear()
        self._rounds[around] += 1
        if step["running"]:
            return self._rounds[around] >= _PATIENCE_ROUNDS
        last: str = step["preempted"][-1]
        again = self._outgrown == last
        self._outgrown = last
        return again


def play(scenario: dict[str, Any], engine: Engine) -> Iterator[dict[str, Any]]:
    """Every step, in the order in which its output is processed."""
    arrivals = deque(sorted(scenario["requests"], key=lambda request: request["arrival_step"]))
    batches: deque[Any] = deque()
    depth = 2 if engine.asynchronous else 1
    clock = 0
    ends = Ends()
    while engine.scheduler.has_requests() or batches or arrivals:
        if not engine.scheduler.has_requests() and not batches:
            clock = max(clock, arrivals[0]["arrival_step"])
        while arrivals and arrivals[0]["arrival_step"] <= clock:
            engine.add(arrivals.popleft())
        if engine.scheduler.has_requests():
            output, state = engine.schedule()
            batches.append((output, {"step": clock, **state}, engine.produced(output)))
            clock += 1
            if len(batches) < depth:
                continue
        output, step, tokens = batches.popleft()
        out, finished = engine.update(output, tokens)
        step |= {"out": out, "finished": finished, "free_after": engine.free}
        yield step
        hopeless = ends.hopeless(step)
        if hopeless and not arrivals and engine.scheduler.has_unfinished_requests():
            return


def answer(scenario: dict[str, Any], folder: str) -> dict[str, Any]:
    """The steps of one scenario, and what they took."""
    start = time.perf_counter()
    engine = Engine(scenario, folder)
    built = time.perf_counter()
    steps = list(play(scenario, engine))
    unfinished = engine.scheduler.has_unfinished_requests()
    return {
        "scheduler_block_size": engine.block,
        "hash_block_size": engine.hash_block,
        "num_lookahead_tokens": engine.scheduler.num_lookahead_tokens,
        "status": "stuck" if unfinished else "ok",
        "build_ms": round(1000 * (built - start), 2),
        "run_ms": round(1000 * (time.perf_counter() - built), 2),
        "schedule_ms": round(1000 * engine.schedule_s, 2),
        "steps": steps,
    }


def main() -> None:
    """Answers every line; an exception becomes its class and message."""
    # A script's folder comes first in sys.path, and hwtune.adapters has a package called vllm.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ["PYTHONHASHSEED"] = "0"
    import vllm

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(_setup.MODEL), encoding="utf-8")
        for line in sys.stdin:
            try:
                found = answer(json.loads(line), folder)
            except Exception as error:
                text = " ".join(str(error).split())[:300]
                found = {"error": {"class": type(error).__name__, "message": text}}
            found["vllm"] = vllm.__version__
            print(MARK + json.dumps(found), flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.path.pop(0)
    main()
