"""A child process that leaves nothing behind: not its workers, not when hwtune itself is killed.

Between hwtune and the command stands a small supervisor process (``supervisor.py``). It outlives
neither of them: it ends the command's whole family when asked to, when the command ends, and when
hwtune dies, SIGKILL included. Linux only (``prctl``, ``/proc``).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FAMILY_VARIABLE = "HWTUNE_FAMILY"
"""Inherited by every process of a family; its value is the supervisor's process id."""

GRACE_S = 15.0
"""How long a server may take to shut its workers down after SIGTERM."""

_KILL_S = 10.0


def spawn(argv: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts a command under a supervisor, in a session of its own, output in one pipe.

    The returned process is the supervisor; it ends with the command's exit status.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "hwtune.adapters.vllm.supervisor", str(os.getpid()), *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        start_new_session=True,
    )


def stop_tree(child: subprocess.Popen[bytes], *, grace_s: float = GRACE_S) -> None:
    """Ends a spawned command and every process it ever started: asked first, then killed."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace_s + _KILL_S)
    kill_family(child.pid)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_KILL_S)


def kill_family(leader: int, known: frozenset[int] = frozenset()) -> None:
    """Kills what lives of a family, this process excepted, until nothing does."""
    deadline = time.monotonic() + _KILL_S
    while (left := family(leader, known) - {os.getpid()}) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _collect(left)
        time.sleep(0.02)


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
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{FAMILY_VARIABLE}={leader}".encode() in variables


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
