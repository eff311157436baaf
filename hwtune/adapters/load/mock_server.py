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
import ssl
import sys
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast, get_args

from hwtune.adapters.load.exchange import clock
from hwtune.adapters.load.http import parse_head
from hwtune.adapters.load.loop import new_loop
from hwtune.adapters.load.mock_frames import (
    CLOCK_DIGITS,
    STREAM_HEAD,
    Behaviour,
    Fault,
    Text,
    frame,
    immediate_answer,
    metrics_text,
    plain_response,
    response_frames,
    role_event,
    text_response,
)


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
        self.prompt_tokens = 0
        self.keep_bodies = True
        self.connections: set[asyncio.Transport] = set()
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0, tls: ssl.SSLContext | None = None) -> int:
        """Listens on 127.0.0.1 and returns the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), "127.0.0.1", port, backlog=2048, ssl=tls
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
        data = stream.frames[stream.index]
        stream.index += 1
        more = stream.index < len(stream.frames)
        if self.behaviour.text == "clock" and (stream.index == 2 or not more):
            data = data.replace(CLOCK_DIGITS, b"%17.6f" % (clock() + self._unix_offset_s))
        stream.connection.write(data)
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
        request = _request(bytes(self._buffer))
        if request is None:
            return
        del self._buffer[: request.size]
        key = self._server.behaviour.api_key
        if key and f"Authorization: Bearer {key}" not in request.headers:
            self.write(plain_response(401, {"error": {"message": "no or another API key"}}))
            return
        self._handle(request.path, request.body)

    def _handle(self, path: str, body: dict[str, Any]) -> None:
        behaviour = self._server.behaviour
        if path.endswith("/completions"):
            self._complete(body, chat="/chat/" in path)
        elif path.endswith("/metrics") and behaviour.prefix_caching is not None:
            self.write(text_response(metrics_text(behaviour, self._server.prompt_tokens)))
        elif path.endswith("/health"):
            self.write(text_response(""))
        elif path.endswith("/models"):
            model = {"id": behaviour.model, "max_model_len": behaviour.max_model_len}
            self.write(plain_response(200, {"data": [model]}))
        else:
            self.write(plain_response(404, {"error": {"message": f"the mock has no {path}"}}))

    def _complete(self, body: dict[str, Any], *, chat: bool) -> None:
        server = self._server
        if server.keep_bodies:
            server.bodies.append(body)
        fault = server.next_fault()
        if fault == "hang":
            return
        immediate = immediate_answer(fault)
        if immediate is not None:
            self.write(immediate)
            return
        if fault == "die":
            server.close()
            self.write(STREAM_HEAD)
            self.abort()
            return
        prompt, output = _lengths(body, chat)
        server.prompt_tokens += prompt
        frames = response_frames(server.behaviour, fault, prompt, output, chat)
        early = frame(role_event()) if chat or server.behaviour.role_chunk else b""
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


def _lengths(body: dict[str, Any], chat: bool) -> tuple[int, int]:
    """Prompt tokens and output tokens. A word is a token, and a chat's template adds five."""
    if not chat:
        prompt = body["prompt"]
        tokens = len(prompt.split() if isinstance(prompt, str) else prompt)
        return tokens, int(body["max_tokens"])
    words = sum(len(message["content"].split()) for message in body["messages"])
    return words + 5, int(body.get("max_completion_tokens") or body["max_tokens"])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    path: str
    headers: tuple[str, ...]
    body: dict[str, Any]
    size: int
    """Bytes of the whole request."""


@lru_cache(maxsize=64)
def _request(raw: bytes) -> _Request | None:
    """A whole request, or None while it is not. Equal ones are read once: reading is not timed."""
    end = raw.find(b"\r\n\r\n")
    if end < 0:
        return None
    # A request line stands where a response has its status line.
    head = parse_head(b"HTTP/1.1 200\r\n" + raw[raw.find(b"\r\n") + 2 :])
    length = (head.content_length or 0) if head else 0
    if len(raw) < end + 4 + length:
        return None
    line, *headers = raw[:end].decode("latin-1").split("\r\n")
    body = json.loads(raw[end + 4 : end + 4 + length] or b"{}")
    return _Request(path=line.split()[1], headers=tuple(headers), body=body, size=end + 4 + length)


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
