"""A closed loop of streaming requests against one server."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import importlib
import json
import os
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from hwtune.adapters.load.exchange import Connection, Endpoint, Exchange, clock
from hwtune.adapters.load.stream import Answer, StreamFailure, read_answer
from hwtune.domain.bench import Phase, RequestRecord
from hwtune.domain.launch import Arm

_Result = TypeVar("_Result")
_TICK_S = 0.01
_LAG_WORTH_KEEPING_S = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request to send, and where its record belongs."""

    arm: Arm
    phase: Phase
    tier: str
    pair: int
    attempt: int
    prompt: int
    prompt_id: str
    token_ids: tuple[int, ...]
    model: str
    output_tokens: int

    def body(self) -> bytes:
        """JSON for ``/v1/completions``: greedy, exactly ``output_tokens`` long, usage counted."""
        fields = {
            "model": self.model,
            "prompt": self.token_ids,
            "max_tokens": self.output_tokens,
            "min_tokens": self.output_tokens,
            "ignore_eos": True,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        return json.dumps(fields, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """How well the client itself did."""

    worst_lag_s: float
    """Longest time the event loop was late for its own timer."""


def run_load(
    endpoint: Endpoint,
    requests: Sequence[Request],
    *,
    concurrency: int,
    timeout_s: float,
    on_record: Callable[[RequestRecord], None],
) -> LoadReport:
    """Sends every request, ``concurrency`` at a time, and reports each as it ends.

    Connections are open before the first request. A server that cannot be reached ends the run
    early: requests that were not sent leave no record.
    """
    load = _Load(endpoint, requests, timeout_s, on_record)
    with _quiet_collector(), _first_in_line():
        return run_async(load.run(min(concurrency, len(requests))))


def run_async(main: Coroutine[Any, Any, _Result]) -> _Result:
    """Runs a coroutine on uvloop when it is installed, else on asyncio's own loop."""
    loop = new_loop()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(_cancel_all())
        loop.close()


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's loop when it is installed."""
    try:
        loop: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
    except ImportError:
        return asyncio.new_event_loop()
    return loop


async def _cancel_all() -> None:
    """Ends what an interrupt left behind, and lets closed sockets go."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)


@contextmanager
def _quiet_collector() -> Iterator[None]:
    """No garbage collection while streams run: a pause would look like the server's."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


@contextmanager
def _first_in_line() -> Iterator[None]:
    """Real-time scheduling for this thread, where the system allows it.

    The client needs next to no processor time, but it needs it at once: where servers fill every
    core, an ordinary process reads its socket up to 0.2 s late. Child processes do not inherit it.
    """
    try:
        before, parameter = os.sched_getscheduler(0), os.sched_getparam(0)
        realtime = os.SCHED_RR | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, realtime, os.sched_param(1))
    except (AttributeError, OSError):
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, before, parameter)


class _Load:
    def __init__(
        self,
        endpoint: Endpoint,
        requests: Sequence[Request],
        timeout_s: float,
        on_record: Callable[[RequestRecord], None],
    ) -> None:
        self._endpoint = endpoint
        # Bodies are made before the first clock read: a long prompt takes milliseconds.
        self._waiting = deque((request, endpoint.request(request.body())) for request in requests)
        self._finished: deque[tuple[Request, Exchange]] = deque()
        self._timeout_s = timeout_s
        self._on_record = on_record
        self._unix_offset_s = time.time() - clock()
        self._lags: list[tuple[float, float]] = []
        """From when to when the event loop did not run."""
        self._unreachable = False

    async def run(self, concurrency: int) -> LoadReport:
        connections = [Connection(self._endpoint) for _ in range(concurrency)]
        for start in range(0, concurrency, 64):
            await asyncio.gather(*(each.open() for each in connections[start : start + 64]))
        ticker = asyncio.ensure_future(self._watch_lag())
        try:
            reader = asyncio.ensure_future(self._read_finished())
            await asyncio.gather(*(self._work(connection) for connection in connections))
            reader.cancel()
        finally:
            # Also after Ctrl-C: what has ended is recorded.
            ticker.cancel()
            while self._finished:
                self._record_one()
            for connection in connections:
                connection.close()
        return LoadReport(worst_lag_s=max((end - start for start, end in self._lags), default=0.0))

    async def _work(self, connection: Connection) -> None:
        while self._waiting and not self._unreachable:
            request, raw = self._waiting.popleft()
            exchange = await connection.send(raw, self._timeout_s)
            if exchange.ending == "closed early" and (problem := await connection.open()):
                exchange.ending = "connect error"
                exchange.detail = f"the server went away in mid-answer: {problem}"
            self._unreachable |= exchange.ending == "connect error"
            self._finished.append((request, exchange))

    async def _read_finished(self) -> None:
        """Turns bytes into records, in at most a tenth of the time, so that no stream waits."""
        while True:
            before = clock()
            if self._finished:
                self._record_one()
            await asyncio.sleep(max(_TICK_S / 2, 9 * (clock() - before)))

    async def _watch_lag(self) -> None:
        while True:
            due_s = clock() + _TICK_S
            await asyncio.sleep(_TICK_S)
            if clock() - due_s > _LAG_WORTH_KEEPING_S:
                self._lags.append((due_s, clock()))

    def _late_s(self, exchange: Exchange) -> float:
        """Longest stretch of this exchange in which nothing could be read."""
        overlaps = (
            min(end, exchange.ended_s) - max(start, exchange.started_s) for start, end in self._lags
        )
        return max(overlaps, default=0.0)

    def _record_one(self) -> None:
        request, exchange = self._finished.popleft()
        late_s = max(0.0, self._late_s(exchange))
        self._on_record(make_record(request, exchange, self._unix_offset_s, late_s))


def make_record(
    request: Request, exchange: Exchange, unix_offset_s: float, client_late_s: float = 0.0
) -> RequestRecord:
    """The record of a finished exchange; a failed one carries its reason and no times."""
    answer, failure = None, None
    try:
        answer = read_answer(exchange, model=request.model, output_tokens=request.output_tokens)
    except StreamFailure as error:
        failure = error
    return RequestRecord(
        arm=request.arm,
        phase=request.phase,
        tier=request.tier,
        pair=request.pair,
        attempt=request.attempt,
        prompt=request.prompt,
        prompt_id=request.prompt_id,
        started_unix_s=exchange.started_s + unix_offset_s,
        ended_unix_s=exchange.ended_s + unix_offset_s,
        client_late_s=round(client_late_s, 6),
        failure=failure.reason if failure else None,
        detail=failure.detail if failure else "",
        **(_measured(answer, exchange) if answer else {}),
    )


def _measured(answer: Answer, exchange: Exchange) -> dict[str, Any]:
    times = tuple(round(time_s - exchange.started_s, 7) for time_s in answer.token_times_s)
    text = "".join(answer.texts)
    return {
        "ttft_s": times[0],
        "e2el_s": times[-1],
        "chunk_times_s": times,
        "prompt_tokens": answer.prompt_tokens,
        "output_tokens": answer.output_tokens,
        "text": text,
        "text_sha256": hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
        "finish_reason": answer.finish_reason,
    }
