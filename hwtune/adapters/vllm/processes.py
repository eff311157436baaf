"""A child process that leaves nothing behind: not its workers, not when hwtune itself dies.

Linux only: ``prctl`` makes hwtune the reaper of orphaned descendants, so that a worker whose
parent died is still found and ended, and has the kernel end the child when hwtune is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h

# Runs in the child before vLLM: 1 is PR_SET_PDEATHSIG. A parent that is already gone is noticed.
_EXEC = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.environ["HWTUNE_FAMILY"] = str(os.getpid())
os.execvp(sys.argv[2], sys.argv[2:])
"""


def spawn(argv: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts a command in a session of its own, output in one pipe."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return subprocess.Popen(
        [sys.executable, "-c", _EXEC, str(os.getpid()), *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        start_new_session=True,
    )


def stop_tree(child: subprocess.Popen[bytes], *, grace_s: float = 15.0) -> None:
    """Ends a child and every process it ever started: asked first, then killed.

    The child gets SIGTERM and ``grace_s`` seconds to shut its workers down; whatever is then left
    of its session or of its descendants is killed.
    """
    known = family(child.pid)
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace_s)
    deadline = time.monotonic() + grace_s
    while (left := family(child.pid, known)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _collect(left)
        time.sleep(0.05)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(1.0)


def family(leader: int, known: frozenset[int] = frozenset()) -> frozenset[int]:
    """Live processes that a spawned child started, itself included.

    Found by session, by descent, and, for one that left the session and lost its parent, by the
    variable it inherited. ``known`` adds processes found earlier, if they still live.
    """
    table = {process.pid: process for process in _processes()}
    members = {p.pid for p in table.values() if p.session == leader or p.pid in known}
    members |= {p.pid for p in table.values() if p.parent == os.getpid() and _marked(p.pid, leader)}
    grown = True
    while grown:
        children = {p.pid for p in table.values() if p.parent in members} - members
        members |= children
        grown = bool(children)
    return frozenset(members)


def _marked(pid: int, leader: int) -> bool:
    try:
        return f"HWTUNE_FAMILY={leader}".encode() in Path(
            f"/proc/{pid}/environ"
        ).read_bytes().split(b"\0")
    except OSError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Process:
    pid: int
    parent: int
    session: int


def _processes() -> Iterator[_Process]:
    """Every live process; zombies do not count."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # "pid (name) state ppid pgrp session …"; the name may hold spaces and parentheses.
            state, parent, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            if state not in "ZX":
                yield _Process(pid=int(stat.parent.name), parent=int(parent), session=int(session))


def _collect(pids: frozenset[int]) -> None:
    """Reaps orphans that were handed to this process; the Popen reaps its own child."""
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
