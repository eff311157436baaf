"""Who listens on a server's port.

vLLM 0.32 (entrypoints/launchers/launcher.py) binds its port when it starts and listens when it is
ready; in between any program with ``SO_REUSEADDR`` can take the port. With several API servers it
binds with ``SO_REUSEPORT``: then a second server of the same user can listen there too, and the
kernel hands each connection to either.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hwtune.domain.errors import ExternalFailureError

_LISTENING = "0A"  # include/net/tcp_states.h
_ESTABLISHED = "01"


def require_free_port(host: str, port: int) -> None:
    """Raises ExternalFailureError when something listens there already, or nothing can."""
    with socket.socket(_family(host)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            message = (
                f"{host}:{port}: cannot listen there ({error.strerror}); "
                "stop what uses the port, or give another with --port"
            )
            raise ExternalFailureError(message) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class PortUse:
    """What the kernel's tables say of a port. None: they do not tell."""

    ours: bool | None
    """Whether one of the server's processes listens."""
    strangers: tuple[str, ...] = ()
    """Other listeners that get its connections, as ``name (pid 7)``."""
    connections: int | None = None
    """Established connections to the server's processes."""


def port_use(host: str, port: int, pids: Iterable[int]) -> PortUse:
    """Looks the port up in ``/proc``; Linux only.

    Args:
        host: where the server listens.
        port: TCP port.
        pids: the server's processes.
    """
    rows = list(_sockets(port))
    if not rows:
        return PortUse(ours=False if Path("/proc/net/tcp").exists() else None)
    own = _inodes_of(pids)
    if own is None:
        return PortUse(ours=None)
    listening = [row for row in rows if row.state == _LISTENING]
    strangers = [row for row in listening if row.inode not in own and _meets(host, row.address)]
    return PortUse(
        ours=any(row.inode in own for row in listening),
        strangers=tuple(_owner(row.inode) for row in strangers),
        connections=sum(row.state == _ESTABLISHED and row.inode in own for row in rows),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Socket:
    address: str
    state: str
    inode: int


def _sockets(port: int) -> Iterator[_Socket]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                address, _, number = fields[1].partition(":")
                if int(number, 16) == port:
                    yield _Socket(address=_readable(address), state=fields[3], inode=int(fields[9]))


def _readable(text: str) -> str:
    """``0100007F`` -> ``127.0.0.1``: 32-bit words in the byte order of the machine."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    return str(ipaddress.ip_address(struct.pack(f"={len(words)}I", *words)))


def _meets(host: str, address: str) -> bool:
    """Whether connections to ``host`` can go to a listener on ``address`` as well.

    The kernel prefers the more precise address, so a wildcard takes nothing from a server that
    named one.
    """
    try:
        wanted = ipaddress.ip_address(host)
    except ValueError:
        return True
    other = ipaddress.ip_address(address)
    return wanted == other or (wanted.is_unspecified and wanted.version == other.version)


def _inodes_of(pids: Iterable[int]) -> set[int] | None:
    """Inodes of all sockets of some processes; None when none of them may be looked into."""
    found: set[int] = set()
    seen = False
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                seen = True
                with contextlib.suppress(OSError):
                    target = str(Path(entry.path).readlink())
                    if target.startswith("socket:["):
                        found.add(int(target[8:-1]))
    return found if seen else None


def _owner(inode: int) -> str:
    for folder in Path("/proc").glob("[0-9]*"):
        own = _inodes_of([int(folder.name)])
        if own and inode in own:
            with contextlib.suppress(OSError):
                return f"{(folder / 'comm').read_text().strip()} (pid {folder.name})"
    return "a process that cannot be seen from here"


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
