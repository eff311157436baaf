"""One HTTP/1.1 exchange on raw asyncio: a clock read per socket read, and nothing else.

While a response arrives, its bytes are only kept together with the time they came. They are
looked at after the last one. So the client's own work does not delay the next stream.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass, field
from typing import Literal, cast
from urllib.parse import urlsplit

from hwtune.adapters.load.http import response_is_complete
from hwtune.domain.errors import InputError

clock = time.perf_counter

_LAST_CHUNK = b"0\r\n\r\n"
_LAST_EVENT = b"data: [DONE]\n\n\r\n" + _LAST_CHUNK
"""Cannot stand inside an event, whose JSON has no raw line ends: no need to walk the chunks."""
_READ_BYTES = 32 * 1024

Ending = Literal["complete", "connect error", "timeout", "closed early"]


@dataclass(slots=True, kw_only=True)
class Exchange:
    """Raw facts of one request. Mutable while it runs, read afterwards."""

    started_s: float = 0.0
    """When the request was written, on ``clock``."""
    reads: list[tuple[float, bytes]] = field(default_factory=list)
    """Every socket read with its time on ``clock``."""
    ended_s: float = 0.0
    ending: Ending = "complete"
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a server listens, and what every request to it carries."""

    host: str
    port: int
    path: str
    tls: bool = False
    verify_tls: bool = True
    """False: any certificate will do."""
    api_key: str = field(default="", repr=False)
    """Sent as a bearer token; never stored."""

    @property
    def url(self) -> str:
        """For messages."""
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}{self.path}"

    def request(self, body: bytes, method: str = "POST", path: str = "/v1/completions") -> bytes:
        """A whole HTTP/1.1 request with a JSON body."""
        key = f"Authorization: Bearer {self.api_key}\r\n" if self.api_key else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        head = (
            f"{method} {self.path}{path} HTTP/1.1\r\nHost: {host}:{self.port}\r\n{key}"
            "Accept: text/event-stream\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: keep-alive\r\n\r\n"
        )
        return head.encode() + body

    def tls_context(self) -> ssl.SSLContext | None:
        """For ``create_connection``; None where TLS is not spoken."""
        if not self.tls:
            return None
        context = ssl.create_default_context()
        if not self.verify_tls:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def parse_endpoint(url: str, *, verify_tls: bool = True, api_key: str = "") -> Endpoint:
    """``http[s]://host:port[/path]``; a path of /v1 is dropped, since every request names it.

    Raises:
        InputError: not such a URL.
    """
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        port = parts.port or {"https": 443}.get(parts.scheme, 80)
    except ValueError as error:
        message = f"{url}: not a URL ({error})"
        raise InputError(message) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        message = f"{url}: expected http://HOST:PORT or https://HOST:PORT"
        raise InputError(message)
    return Endpoint(
        host=parts.hostname,
        port=port,
        path=parts.path.rstrip("/").removesuffix("/v1"),
        tls=parts.scheme == "https",
        verify_tls=verify_tls,
        api_key=api_key,
    )


class _Stream(asyncio.Protocol):
    """One connection. ``done`` resolves when the response is complete or cannot become so."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.exchange = Exchange()
        self.done: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._plain = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        # asyncio allocates this much for every read: 256 KiB would cost more than the read.
        if hasattr(transport, "max_size"):
            transport.max_size = _READ_BYTES

    def data_received(self, data: bytes) -> None:
        now = clock()
        reads = self.exchange.reads
        reads.append((now, data))
        # A chunked body ends so; without chunks every read may be the last.
        if data.endswith(_LAST_CHUNK) or self._plain or len(data) < len(_LAST_CHUNK):
            self._look_for_the_end(now)
        elif len(reads) == 1:
            self._plain = b"chunked" not in data[:2048]
            if self._plain:
                self._look_for_the_end(now)

    def _look_for_the_end(self, now: float) -> None:
        reads = self.exchange.reads
        tail = b"".join(data for _, data in reads[-len(_LAST_CHUNK) :])
        if tail.endswith(_LAST_EVENT) or (
            (self._plain or tail.endswith(_LAST_CHUNK)) and response_is_complete(reads)
        ):
            self._finish("complete", now)

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._finish("closed early", clock(), str(error or "the server closed the connection"))

    def begin(self, request: bytes, timeout_s: float) -> asyncio.Future[None]:
        """Writes a request on an open connection."""
        assert self.transport is not None
        loop = asyncio.get_running_loop()
        self.exchange = Exchange()
        self._plain = False
        self.done = loop.create_future()
        self._timer = loop.call_later(timeout_s, self._expire, timeout_s)
        self.exchange.started_s = clock()
        self.transport.write(request)
        return self.done

    def _expire(self, timeout_s: float) -> None:
        self._finish("timeout", clock(), f"no complete answer within {timeout_s:g} s")

    def _finish(self, ending: Ending, now: float, detail: str = "") -> None:
        if self.done is None or self.done.done():
            return
        if self._timer is not None:
            self._timer.cancel()
        self.exchange.ended_s = now
        self.exchange.ending = ending
        self.exchange.detail = detail
        self.done.set_result(None)


class Connection:
    """A keep-alive connection that opens itself again when the server has closed it."""

    def __init__(self, endpoint: Endpoint, connect_timeout_s: float = 10.0) -> None:
        self._endpoint = endpoint
        self._connect_timeout_s = connect_timeout_s
        self._stream: _Stream | None = None
        self._tls: ssl.SSLContext | None = None

    async def open(self) -> str:
        """Connects unless connected; returns why it failed, or nothing."""
        if self._stream is not None and self._stream.transport is not None:
            return ""
        loop = asyncio.get_running_loop()
        endpoint = self._endpoint
        context = self._tls = self._tls or endpoint.tls_context()
        connecting = loop.create_connection(_Stream, endpoint.host, endpoint.port, ssl=context)
        try:
            _, self._stream = await asyncio.wait_for(connecting, self._connect_timeout_s)
        except asyncio.TimeoutError:
            return f"no connection within {self._connect_timeout_s:g} s"
        except (OSError, UnicodeError) as error:
            # UnicodeError: a name that cannot be one of a host, such as "a..b".
            return str(error)
        return ""

    async def send(self, request: bytes, timeout_s: float) -> Exchange:
        """One exchange. Connecting is not part of the time: it happens before ``started_s``."""
        reused = self._stream is not None
        exchange = await self._send_once(request, timeout_s)
        if reused and exchange.ending == "closed early" and not exchange.reads:
            # The server closed an idle connection just then; it never saw the request.
            exchange = await self._send_once(request, timeout_s)
        return exchange

    async def _send_once(self, request: bytes, timeout_s: float) -> Exchange:
        problem = await self.open()
        if problem or self._stream is None:
            now = clock()
            return Exchange(started_s=now, ended_s=now, ending="connect error", detail=problem)
        stream = self._stream
        await stream.begin(request, timeout_s)
        if stream.exchange.ending == "timeout":
            self.close()
        return stream.exchange

    def close(self) -> None:
        """Drops the connection at once."""
        if self._stream is not None and self._stream.transport is not None:
            self._stream.transport.abort()
        self._stream = None
