"""Who runs, who holds a device, who listens: read from ``/proc``."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hwtune.domain.doctor.leftovers import without_secrets
from hwtune.domain.doctor.records import ProcessFacts

_SERVER = re.compile(
    r"vllm\.entrypoints|(?:^|/)vllm serve|VLLM::|EngineCore|sglang[.:]|"
    r"(?:^|/)lmdeploy serve|text-generation-(?:server|launcher)|RayWorkerWrapper|mindie"
)
"""Command lines of inference servers that compete for the same device."""

_DEVICE = re.compile(r"^/dev/(?:nvidia\d+|kfd|dri/renderD\d+|davinci\d+|dxg|accel/accel\d+)$")
_SOCKET = re.compile(r"^socket:\[(\d+)\]$")
_LISTEN = "0A"
"""State of a listening socket in ``/proc/net/tcp``."""

_COMMAND_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTable:
    """What ``/proc`` shows."""

    processes: tuple[ProcessFacts, ...]
    """Those that look like a server, hold a device or listen on the port asked about."""
    hidden: int
    """Processes whose open files we may not see."""
    listening: tuple[int, ...]
    open_shared: frozenset[str] | None
    """Paths in ``/dev/shm`` that a process has open or mapped; None when some are hidden."""


def read_processes(port: int, proc: Path = Path("/proc")) -> ProcessTable:
    """Looks at every process once; ends none.

    Args:
        port: whose holder is looked for.
        proc: where the process file system is.
    """
    listeners = _listeners(proc)
    found, hidden, shared = [], 0, set[str]()
    for folder in proc.iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            opened = _opened(folder)
        except PermissionError:
            opened, hidden = frozenset(), hidden + 1
        except OSError:
            continue
        shared |= {path for path in opened | _mapped(folder) if path.startswith("/dev/shm/")}
        process = _process(folder, opened, listeners)
        if process and (process.serves or process.devices or port in process.ports):
            found.append(process)
    return ProcessTable(
        processes=tuple(sorted(found, key=lambda process: process.pid)),
        hidden=hidden,
        listening=tuple(sorted(set(listeners.values()))),
        open_shared=None if hidden else frozenset(shared),
    )


def _opened(folder: Path) -> frozenset[str]:
    """What the process's file descriptors point to."""
    targets = set()
    for link in (folder / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            targets.add(str(link.readlink()))
    return frozenset(targets)


def _mapped(folder: Path) -> frozenset[str]:
    """Files in ``/dev/shm`` that the process has mapped, also after closing them."""
    try:
        text = (folder / "maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    starts = (line.find("/dev/shm/") for line in text.splitlines())
    pairs = zip(text.splitlines(), starts, strict=True)
    return frozenset(line[at:] for line, at in pairs if at >= 0)


def _listeners(proc: Path) -> dict[int, int]:
    """Inode of a listening TCP socket -> its port."""
    ports = {}
    for table in ("tcp", "tcp6"):
        for fields in _rows(proc / "net" / table):
            if fields[3] == _LISTEN:
                ports[int(fields[9])] = int(fields[1].rpartition(":")[2], 16)
    return ports


def _rows(path: Path) -> Iterator[list[str]]:
    with contextlib.suppress(OSError):
        for line in path.read_text(encoding="ascii", errors="replace").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9:
                yield fields


def _process(
    folder: Path, opened: frozenset[str], listeners: dict[int, int]
) -> ProcessFacts | None:
    try:
        stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        raw = (folder / "cmdline").read_bytes()
    except OSError:
        return None
    # "pid (name) state ppid …"; the name may hold spaces and parentheses.
    before, _, after = stat.rpartition(")")
    name, fields = before.partition("(")[2], after.split()
    command = raw.replace(b"\0", b" ").decode("utf-8", "replace").strip() or name
    sockets = (_SOCKET.match(target) for target in opened)
    inodes = {int(match[1]) for match in sockets if match}
    return ProcessFacts(
        pid=int(folder.name),
        parent=int(fields[1]),
        parent_name=_name(folder.parent / fields[1]),
        name=name,
        command=without_secrets(command)[:_COMMAND_CHARACTERS],
        state=fields[0],
        age_s=_age_s(int(fields[19])),
        serves=bool(_SERVER.search(command) or _SERVER.search(name)),
        devices=tuple(sorted(target for target in opened if _DEVICE.match(target))),
        ports=tuple(sorted(listeners[inode] for inode in inodes if inode in listeners)),
    )


def _name(folder: Path) -> str:
    try:
        return (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _age_s(started_ticks: int) -> float:
    """Seconds since a start that ``stat`` counts in clock ticks since boot."""
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    return max(0.0, since_boot - started_ticks / os.sysconf("SC_CLK_TCK"))
