"""A mock OpenAI server with exactly known timing. It stands in for vLLM and computes nothing.

Truth: the first token leaves ``ttft_s`` after the request was read, each further one ``tpot_s``
later. Every fault that was seen on a real server can be played. ``GET /mock`` tells how late the
mock's own writes were, so that its lateness is never blamed on the client.

    python -m hwtune.adapters.load.mock_server --port 8025
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
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

Text = Literal["words", "other words", "degenerate", "empty"]


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
        self.lateness_s: list[float] = []
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


class _Connection(asyncio.Protocol):
    def __init__(self, server: MockServer) -> None:
        self._server = server
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server.connections.add(self._transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is not None:
            self._server.connections.discard(self._transport)
        self._transport = None

    def data_received(self, data: bytes) -> None:
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
            self._complete(json.loads(body))
        elif path.endswith("/models"):
            behaviour = self._server.behaviour
            model = {"id": behaviour.model, "max_model_len": behaviour.max_model_len}
            self._write(_plain(200, {"data": [model]}))
        else:
            self._write(_plain(200, {"lateness_s": sorted(self._server.lateness_s)}))

    def _complete(self, body: dict[str, Any]) -> None:
        server = self._server
        if server.keep_bodies:
            server.bodies.append(body)
        fault = server.next_fault()
        if fault == "hang":
            return
        immediate = _immediate_answer(fault)
        if immediate is not None:
            self._write(immediate)
            return
        if fault == "die":
            server.close()
            self._write(_HEAD)
            self._abort()
            return
        frames = response_frames(
            server.behaviour, fault, len(body["prompt"]), int(body["max_tokens"])
        )
        if server.behaviour.role_chunk:
            frames = (frames[0] + _frame(_role_event()), *frames[1:])
        self._write(frames[0])
        server.in_flight += 1
        server.most_in_flight = max(server.most_in_flight, server.in_flight)
        self._step(frames, 1, clock() + server.behaviour.ttft_s, fault)

    def _step(self, frames: tuple[bytes, ...], index: int, due_s: float, fault: Fault) -> None:
        """Arranges the next frame; the last one ends the stream."""
        loop = asyncio.get_running_loop()
        loop.call_later(due_s - clock(), self._send, frames, index, due_s, fault)

    def _send(self, frames: tuple[bytes, ...], index: int, due_s: float, fault: Fault) -> None:
        server = self._server
        server.lateness_s.append(clock() - due_s)
        self._write(frames[index])
        if index + 1 < len(frames):
            gap = server.behaviour.tpot_s * server.behaviour.tokens_per_chunk
            self._step(frames, index + 1, due_s + gap, fault)
            return
        server.in_flight -= 1
        if fault == "drop":
            self._abort()

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _write(self, data: bytes) -> None:
        if self._transport is None:
            return
        if not self._server.behaviour.split_writes:
            self._transport.write(data)
            return
        for position in range(len(data)):
            self._transport.write(data[position : position + 1])


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
    return f" {'w' if kind == 'words' else 'v'}{index * index % 97}"


def main(arguments: list[str] | None = None) -> None:
    """Serves in this process and prints the port as the first line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft-s", type=float, default=0.2)
    parser.add_argument("--tpot-s", type=float, default=0.02)
    parser.add_argument("--fault", choices=get_args(Fault), default="none")
    parser.add_argument("--fault-every", type=int, default=1)
    options = parser.parse_args(arguments)
    behaviour = Behaviour(
        ttft_s=options.ttft_s,
        tpot_s=options.tpot_s,
        fault=options.fault,
        fault_every=options.fault_every,
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
