"""A mock OpenAI server with exactly known timing. It stands in for vLLM and computes nothing.

Truth: the first token leaves ``ttft_s`` after the request was read, each further one ``tpot_s``
later. Every fault that was seen on a real server can be played. With the text "clock" the first and
the last token are the times at which the mock wrote them, so that its own lateness is never blamed
on the client.

    python -m hwtune.adapters.load.mock_server --port 8025
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, cast, get_args

from hwtune.adapters.load.exchange import clock
from hwtune.adapters.load.http import parse_head

Fault = Literal[
    "none",
    "http 500",
    "error body",
    "error event",
    "drop",
    "silent truncation",
    "no usage",
    "zero tokens",
    "wrong model",
    "hang",
    "not http",
    "die",
]

Text = Literal["words", "degenerate", "empty", "clock"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What the mock plays."""

    model: str = "mock"
    ttft_s: float = 0.2
    tpot_s: float = 0.02
    tokens_per_chunk: int = 1
    role_chunk: bool = False
    """Sends an early chunk that has a choice and no token, as chat endpoints do."""
    continuous_usage: bool = True
    split_writes: bool = False
    """Sends every frame byte by byte, as the worst network would."""
    fault: Fault = "none"
    fault_every: int = 1
    """The fault strikes every n-th request."""
    text: Text = "words"
    max_model_len: int = 100_000
    prompt_token_error: int = 0
    """Added to the prompt tokens that usage reports."""


class MockServer:
    """Serves until its loop ends."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.requests = 0
        self.in_flight = 0
        self.most_in_flight = 0
        self._due: list[tuple[float, int, _Stream]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._unix_offset_s = time.time() - clock()
        self.bodies: list[dict[str, Any]] = []
        self.keep_bodies = True
        self.connections: set[asyncio.Transport] = set()
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> int:
        """Listens on 127.0.0.1 and returns the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), "127.0.0.1", port, backlog=2048
        )
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stops listening."""
        if self._server is not None:
            self._server.close()

    def next_fault(self) -> Fault:
        """Fault of the request that has just been read."""
        self.requests += 1
        if self.requests % self.behaviour.fault_every:
            return "none"
        return self.behaviour.fault

    def begin(self, stream: _Stream) -> None:
        """Takes a stream whose head has been written; its first token falls due after TTFT."""
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        heapq.heappush(self._due, (stream.due_s, self.requests, stream))
        self._arm()

    def _arm(self) -> None:
        """One timer for the stream that is due first."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._due:
            delay_s = self._due[0][0] - clock()
            self._timer = asyncio.get_running_loop().call_later(max(delay_s, 0.0), self._write_due)

    def _write_due(self) -> None:
        gap_s = self.behaviour.tpot_s * self.behaviour.tokens_per_chunk
        while self._due and self._due[0][0] <= clock():
            due_s, number, stream = self._due[0]
            if self._write_next(stream):
                stream.due_s = due_s + gap_s
                heapq.heapreplace(self._due, (stream.due_s, number, stream))
            else:
                heapq.heappop(self._due)
                self.in_flight -= 1
        self._arm()

    def _write_next(self, stream: _Stream) -> bool:
        """Writes one frame; whether there is another."""
        frame = stream.frames[stream.index]
        stream.index += 1
        more = stream.index < len(stream.frames)
        if self.behaviour.text == "clock" and (stream.index == 2 or not more):
            frame = frame.replace(CLOCK_DIGITS, b"%17.6f" % (clock() + self._unix_offset_s))
        stream.connection.write(frame)
        if not more and stream.fault == "drop":
            stream.connection.abort()
        return more


@dataclass(slots=True, kw_only=True)
class _Stream:
    """A response on its way."""

    connection: _Connection
    frames: tuple[bytes, ...]
    fault: Fault
    due_s: float
    index: int = 1


class _Connection(asyncio.Protocol):
    def __init__(self, server: MockServer) -> None:
        self._server = server
        self._buffer = bytearray()
        self._read_s = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server.connections.add(self._transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is not None:
            self._server.connections.discard(self._transport)
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._read_s = clock()
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        # A request line stands where a response has its status line.
        head = parse_head(b"HTTP/1.1 200\r\n" + self._buffer[self._buffer.find(b"\r\n") + 2 :])
        length = (head.content_length or 0) if head else 0
        if len(self._buffer) < end + 4 + length:
            return
        line = bytes(self._buffer[: self._buffer.find(b"\r\n")]).decode()
        body = bytes(self._buffer[end + 4 : end + 4 + length])
        del self._buffer[: end + 4 + length]
        self._handle(line.split()[1], body)

    def _handle(self, path: str, body: bytes) -> None:
        if path.endswith("/completions"):
            self._complete(_parsed(body))
        elif path.endswith("/models"):
            behaviour = self._server.behaviour
            model = {"id": behaviour.model, "max_model_len": behaviour.max_model_len}
            self.write(_plain(200, {"data": [model]}))
        else:
            self.write(_plain(404, {"error": {"message": f"the mock has no {path}"}}))

    def _complete(self, body: dict[str, Any]) -> None:
        server = self._server
        if server.keep_bodies:
            server.bodies.append(body)
        fault = server.next_fault()
        if fault == "hang":
            return
        immediate = _immediate_answer(fault)
        if immediate is not None:
            self.write(immediate)
            return
        if fault == "die":
            server.close()
            self.write(_HEAD)
            self.abort()
            return
        frames = response_frames(
            server.behaviour, fault, len(body["prompt"]), int(body["max_tokens"])
        )
        early = _frame(_role_event()) if server.behaviour.role_chunk else b""
        self.write(frames[0] + early)
        due_s = self._read_s + server.behaviour.ttft_s
        server.begin(_Stream(connection=self, frames=frames, fault=fault, due_s=due_s))

    def abort(self) -> None:
        """Closes after what was written."""
        if self._transport is not None:
            self._transport.close()

    def write(self, data: bytes) -> None:
        """Whole, or byte by byte when so told."""
        if self._transport is None:
            return
        if not self._server.behaviour.split_writes:
            self._transport.write(data)
            return
        for position in range(len(data)):
            self._transport.write(data[position : position + 1])


@lru_cache(maxsize=64)
def _parsed(body: bytes) -> dict[str, Any]:
    """The request. Equal ones are parsed once: parsing is not what is to be timed."""
    data: dict[str, Any] = json.loads(body)
    return data


def _immediate_answer(fault: Fault) -> bytes | None:
    error = {"error": {"message": "the mock was told to fail", "code": 500}}
    if fault == "http 500":
        return _plain(500, error)
    if fault == "error body":
        return _plain(200, error)
    if fault == "not http":
        return b"SSH-2.0-mock\r\n\r\n"
    return None


def _plain(status: int, data: dict[str, Any]) -> bytes:
    body = json.dumps(data).encode()
    head = f"HTTP/1.1 {status} x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


CLOCK_DIGITS = b"?????????????????"
"""Where a time is written into a frame: 17 characters, microseconds since 1970."""

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _frame(event: dict[str, Any] | str) -> bytes:
    """One server-sent event as one HTTP chunk."""
    text = event if isinstance(event, str) else json.dumps(event, separators=(",", ":"))
    payload = f"data: {text}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(payload), payload)


def _role_event() -> dict[str, Any]:
    return {"model": "mock", "choices": [{"delta": {"role": "assistant", "content": ""}}]}


@lru_cache(maxsize=64)
def response_frames(
    behaviour: Behaviour, fault: Fault, prompt_tokens: int, output_tokens: int
) -> tuple[bytes, ...]:
    """Head, then one entry per chunk; what follows the last token travels with it."""
    count = {"drop": output_tokens // 4, "silent truncation": output_tokens // 4, "zero tokens": 0}
    tokens = count.get(fault, output_tokens)
    prompt = prompt_tokens + behaviour.prompt_token_error
    model = "another" if fault == "wrong model" else behaviour.model
    frames = [_HEAD]
    for done, text in _chunks(behaviour, tokens):
        last = done == tokens and fault not in ("drop", "silent truncation", "error event")
        event: dict[str, Any] = {"model": model, "choices": [{"text": text}]}
        event["choices"][0]["finish_reason"] = "length" if last else None
        if behaviour.continuous_usage and fault != "no usage":
            event["usage"] = {"prompt_tokens": prompt, "completion_tokens": done}
        frames.append(_frame(event))
    frames.extend([b""] if len(frames) == 1 else [])
    frames[-1] += _ending(fault, model, prompt, tokens)
    return tuple(frames)


def _ending(fault: Fault, model: str, prompt_tokens: int, tokens: int) -> bytes:
    """Usage, [DONE] and the last chunk, as far as the fault lets them come."""
    if fault == "drop":
        return b""
    ending = b""
    if fault == "error event":
        ending += _frame({"error": {"message": "the mock was told to fail"}})
    elif fault == "zero tokens":
        ending += _frame({"model": model, "choices": [{"text": "", "finish_reason": "stop"}]})
    if fault != "no usage":
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens}
        ending += _frame({"model": model, "choices": [], "usage": usage})
    return ending + _frame("[DONE]") + b"0\r\n\r\n"


def _chunks(behaviour: Behaviour, tokens: int) -> Iterator[tuple[int, str]]:
    """Tokens so far and text of each chunk."""
    done = 0
    while done < tokens:
        size = min(behaviour.tokens_per_chunk, tokens - done)
        text = "".join(_word(behaviour.text, done + offset) for offset in range(size))
        done += size
        yield done, text


def _word(kind: Text, index: int) -> str:
    if kind == "degenerate":
        return "!"
    if kind == "empty":
        return ""
    if kind == "clock":
        return f" {CLOCK_DIGITS.decode()}"
    return f" w{index * index % 97}"


def main(arguments: list[str] | None = None) -> None:
    """Serves in this process and prints the port as the first line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft-s", type=float, default=0.2)
    parser.add_argument("--tpot-s", type=float, default=0.02)
    parser.add_argument("--fault", choices=get_args(Fault), default="none")
    parser.add_argument("--text", choices=get_args(Text), default="words")
    parser.add_argument("--fault-every", type=int, default=1)
    options = parser.parse_args(arguments)
    behaviour = Behaviour(
        ttft_s=options.ttft_s,
        tpot_s=options.tpot_s,
        fault=options.fault,
        fault_every=options.fault_every,
        text=options.text,
    )
    from hwtune.adapters.load.client import new_loop

    loop = new_loop()
    server = MockServer(behaviour)
    server.keep_bodies = False
    port = loop.run_until_complete(server.start(options.port))
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    try:
        loop.run_forever()
    except KeyboardInterrupt:
        pass
    finally:
        loop.close()


if __name__ == "__main__":
    main()
