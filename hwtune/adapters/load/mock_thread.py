"""The mock server inside this process, for checks of correctness rather than of speed."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hwtune.adapters.load.mock_frames import Behaviour
from hwtune.adapters.load.mock_server import MockServer


@contextmanager
def running_mock(
    behaviour: Behaviour, port: int = 0, tls: ssl.SSLContext | None = None
) -> Iterator[tuple[str, MockServer]]:
    """The mock's URL and the mock, served by a thread until the context ends."""
    loop = asyncio.new_event_loop()
    server = MockServer(behaviour)
    port = loop.run_until_complete(server.start(port, tls))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}", server
    finally:
        asyncio.run_coroutine_threadsafe(_shut_down(server), loop).result(timeout=10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=10)
        loop.close()


async def _shut_down(server: MockServer) -> None:
    # asyncio loses a connection that is being accepted while its server closes: let it arrive.
    await asyncio.sleep(0.002)
    server.close()
    for _ in range(5):
        for connection in tuple(server.connections):
            connection.abort()
        await asyncio.sleep(0)
