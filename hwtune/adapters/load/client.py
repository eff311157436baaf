"""Streaming requests against the servers of one arm: a closed loop, or a schedule of their own."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hwtune.adapters.load.exchange import Connection, Endpoint, Exchange, clock
from hwtune.adapters.load.loop import first_in_line, quiet_collector, run_async
from hwtune.adapters.load.requests import Request
from hwtune.adapters.load.stream import Answer, StreamFailure, read_answer
from hwtune.domain.bench import RequestRecord

_TICK_S = 0.01
_LAG_WORTH_KEEPING_S = 0.001
_OPEN_AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """How well the client itself did."""

    worst_lag_s: float
    """Longest time the event loop was late for its own timer."""


def run_load(
    endpoints: Endpoint | Sequence[Endpoint],
    requests: Sequence[Request],
    *,
    concurrency: int | None,
    timeout_s: float,
    on_record: Callable[[RequestRecord], None],
) -> LoadReport:
    """Sends every request, to the endpoints in turn, and reports each as it ends.

    Connections are open before the first request. A server that cannot be reached ends the run
    early: requests that were not sent leave no record.

    Args:
        endpoints: one or several of the same model; request k goes to endpoint k mod their number.
        requests: in the order in which they are sent.
        concurrency: requests in flight, in a closed loop. None: an open loop, in which every
            request is sent at its ``due_s``, whatever the others do.
        timeout_s: per request, in seconds.
        on_record: called with each record, while others still run.
    """
    places = (endpoints,) if isinstance(endpoints, Endpoint) else tuple(endpoints)
    load = _Load(places, requests, timeout_s, on_record)
    with quiet_collector(), first_in_line():
        return run_async(load.run(concurrency))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A request with its bytes, which are made before the first clock read."""

    request: Request
    server: int
    raw: bytes


class _Load:
    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        requests: Sequence[Request],
        timeout_s: float,
        on_record: Callable[[RequestRecord], None],
    ) -> None:
        self._endpoints = endpoints
        self._waiting = deque(_jobs(endpoints, requests))
        self._idle: list[deque[Connection]] = [deque() for _ in endpoints]
        self._connections: list[Connection] = []
        self._finished: deque[tuple[_Job, Exchange, float]] = deque()
        self._timeout_s = timeout_s
        self._on_record = on_record
        self._unix_offset_s = time.time() - clock()
        self._lags: list[tuple[float, float]] = []
        """From when to when the event loop did not run."""
        self._unreachable = False

    async def run(self, concurrency: int | None) -> LoadReport:
        await self._connect(min(concurrency or _OPEN_AT_ONCE, len(self._waiting)))
        ticker = asyncio.ensure_future(self._watch_lag())
        try:
            reader = asyncio.ensure_future(self._read_finished())
            if concurrency is None:
                await self._keep_schedule()
            else:
                workers = range(min(concurrency, len(self._waiting)))
                await asyncio.gather(*(self._work() for _ in workers))
            if reader.done():
                # It ends by itself only when a record could not be kept.
                reader.result()
            reader.cancel()
        finally:
            # Also after Ctrl-C: what has ended is recorded.
            ticker.cancel()
            for connection in self._connections:
                connection.close()
            while self._finished:
                self._record_one()
        return LoadReport(worst_lag_s=max((end - start for start, end in self._lags), default=0.0))

    async def _connect(self, count: int) -> None:
        """Opens connections, spread over the endpoints as the requests will be."""
        for start in range(0, count, _OPEN_AT_ONCE):
            places = [k % len(self._endpoints) for k in range(start, min(start + 64, count))]
            batch = [self._new_connection(place) for place in places]
            await asyncio.gather(*(connection.open() for connection in batch))
            for place, connection in zip(places, batch, strict=True):
                self._idle[place].append(connection)

    def _new_connection(self, server: int) -> Connection:
        self._connections.append(Connection(self._endpoints[server]))
        return self._connections[-1]

    async def _work(self) -> None:
        while self._waiting and not self._unreachable:
            await self._send(self._waiting.popleft())

    async def _keep_schedule(self) -> None:
        """The schedule is the clock: a request is sent when it is due, however slow others are."""
        origin_s = clock()
        running: list[asyncio.Future[None]] = []
        while self._waiting and not self._unreachable:
            due_s = origin_s + (self._waiting[0].request.due_s or 0.0)
            while (wait_s := due_s - clock()) > 0:
                await asyncio.sleep(wait_s)
            running.append(asyncio.ensure_future(self._send(self._waiting.popleft(), due_s)))
        await asyncio.gather(*running)

    async def _send(self, job: _Job, due_s: float | None = None) -> None:
        idle = self._idle[job.server]
        connection = idle.popleft() if idle else self._new_connection(job.server)
        exchange = await connection.send(job.raw, self._timeout_s)
        if exchange.ending == "closed early" and (problem := await connection.open()):
            exchange.ending = "connect error"
            exchange.detail = f"the server went away in mid-answer: {problem}"
        self._unreachable |= exchange.ending == "connect error"
        idle.append(connection)
        late_s = 0.0 if due_s is None else max(0.0, exchange.started_s - due_s)
        self._finished.append((job, exchange, late_s))

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

    def _client_late_s(self, exchange: Exchange) -> float:
        """Longest stretch of this exchange in which nothing could be read."""
        overlaps = (
            min(end, exchange.ended_s) - max(start, exchange.started_s) for start, end in self._lags
        )
        return max(0.0, max(overlaps, default=0.0))

    def _record_one(self) -> None:
        job, exchange, late_s = self._finished.popleft()
        record = make_record(
            job.request,
            exchange,
            self._unix_offset_s,
            server=job.server,
            late_s=round(late_s, 6),
            client_late_s=round(self._client_late_s(exchange), 6),
        )
        self._on_record(record)


def _jobs(endpoints: Sequence[Endpoint], requests: Sequence[Request]) -> Iterator[_Job]:
    for number, request in enumerate(requests):
        server = number % len(endpoints)
        raw = endpoints[server].request(request.body(), path=request.path)
        yield _Job(request=request, server=server, raw=raw)


def make_record(
    request: Request, exchange: Exchange, unix_offset_s: float, **client: float
) -> RequestRecord:
    """The record of a finished exchange; a failed one carries its reason and no times.

    Args:
        request: what was sent.
        exchange: what came back, and when.
        unix_offset_s: added to ``clock`` gives seconds since 1970.
        client: further fields that the client itself knows.
    """
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
        asked_tokens=request.output_tokens,
        started_unix_s=exchange.started_s + unix_offset_s,
        ended_unix_s=exchange.ended_s + unix_offset_s,
        failure=failure.reason if failure else None,
        detail=failure.detail if failure else "",
        **client,  # type: ignore[arg-type]
        **(_measured(answer, exchange) if answer else {}),
    )


def _measured(answer: Answer, exchange: Exchange) -> dict[str, Any]:
    times = tuple(round(time_s - exchange.started_s, 7) for time_s in answer.token_times_s)
    text = "".join(answer.texts)
    return {
        "ttft_s": times[0],
        "e2el_s": times[-1],
        "chunk_times_s": times,
        "chunk_tokens": _chunk_tokens(answer),
        "prompt_tokens": answer.prompt_tokens,
        "output_tokens": answer.output_tokens,
        "cached_tokens": answer.cached_tokens,
        "text": text,
        "text_sha256": hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
        "finish_reason": answer.finish_reason,
    }


def _chunk_tokens(answer: Answer) -> tuple[int, ...]:
    """Tokens per chunk; empty when each carries one, or when the server does not tell."""
    counts = [0, *(count for count in answer.token_counts if count is not None)]
    steps = tuple(after - before for before, after in pairwise(counts))
    told = len(steps) == len(answer.token_times_s) and min(steps, default=0) >= 0
    return steps if told and set(steps) != {1} else ()
