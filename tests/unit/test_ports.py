"""Who listens on a port, read from the kernel's tables."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from hwtune.adapters.vllm.ports import port_use

OTHER = """
import socket, sys, time
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
s.bind((sys.argv[1], int(sys.argv[2]))); s.listen(); print("up", flush=True); time.sleep(60)
"""


@pytest.fixture
def ours() -> Iterator[socket.socket]:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener


@pytest.fixture
def stranger(ours: socket.socket, request: pytest.FixtureRequest) -> Iterator[int]:
    """Another process on the same port, at the address that the test names."""
    command = [sys.executable, "-c", OTHER, request.param, str(ours.getsockname()[1])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    yield process.pid
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_port_of_ours_alone(ours: socket.socket) -> None:
    port = ours.getsockname()[1]
    use = port_use("127.0.0.1", port, [os.getpid()])
    assert (use.ours, use.strangers, use.connections) == (True, (), 0)


def test_connections_of_clients_are_counted(ours: socket.socket) -> None:
    port = ours.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)):
        accepted, _ = ours.accept()
        with accepted:
            # Both ends are in this process; the client's has another port on its side.
            assert port_use("127.0.0.1", port, [os.getpid()]).connections == 1


def test_a_port_that_nobody_has_is_not_ours(ours: socket.socket) -> None:
    port = ours.getsockname()[1]
    ours.close()
    assert port_use("127.0.0.1", port, [os.getpid()]).ours is False


@pytest.mark.parametrize("stranger", ["127.0.0.1"], indirect=True)
def test_who_shares_the_port_is_named(ours: socket.socket, stranger: int) -> None:
    use = port_use("127.0.0.1", ours.getsockname()[1], [os.getpid()])
    assert use.ours
    assert len(use.strangers) == 1
    assert f"(pid {stranger})" in use.strangers[0]


@pytest.mark.parametrize("stranger", ["0.0.0.0"], indirect=True)
def test_a_less_precise_address_takes_nothing_away(ours: socket.socket, stranger: int) -> None:
    port = ours.getsockname()[1]
    assert port_use("127.0.0.1", port, [os.getpid()]).strangers == ()
    assert len(port_use("0.0.0.0", port, [os.getpid()]).strangers) == 1


def test_a_stranger_alone_on_the_port_is_not_ours(ours: socket.socket) -> None:
    use = port_use("127.0.0.1", ours.getsockname()[1], [os.getppid()])
    assert use.ours is False
    assert f"(pid {os.getpid()})" in use.strangers[0]
