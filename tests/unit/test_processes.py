"""No process stays behind: not a stubborn child, not an orphan, not a worker in its own session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hwtune.adapters.vllm.processes import family, spawn, stop_tree

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(60)
"""
ORPHANING = """
import os, subprocess, sys, time
if os.fork() == 0:
    if os.fork() == 0:
        time.sleep(60)
    os._exit(0)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print("up", flush=True)
time.sleep(60)
"""


def started(code: str) -> subprocess.Popen[bytes]:
    child = spawn([sys.executable, "-c", code], os.environ)
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    return child


@pytest.mark.parametrize("code", [STUBBORN, ORPHANING], ids=["stubborn", "orphans"])
def test_the_whole_family_ends(code: str) -> None:
    child = started(code)
    members = family(child.pid)
    stop_tree(child, grace_s=0.5)
    assert child.stdout is not None
    child.stdout.close()
    assert child.returncode is not None
    assert not family(child.pid, members)


def test_a_child_that_ended_leaves_orphans_that_are_found() -> None:
    child = started(ORPHANING)
    child.kill()
    child.wait()
    assert len(family(child.pid)) == 2
    stop_tree(child, grace_s=0.5)
    assert child.stdout is not None
    child.stdout.close()
    assert not family(child.pid)


def test_the_child_ends_when_its_owner_is_killed() -> None:
    owner_code = (
        "import os, sys, time\n"
        "from hwtune.adapters.vllm.processes import spawn\n"
        "child = spawn([sys.executable, '-c', 'import time; time.sleep(60)'], os.environ)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", owner_code], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    child = int(owner.stdout.readline())
    while not _execed(child):
        time.sleep(0.02)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    while family(child):
        time.sleep(0.02)


def _execed(pid: int) -> bool:
    """Whether the child is past the wrapper that asks for the parent-death signal."""
    return b"prctl" not in Path(f"/proc/{pid}/cmdline").read_bytes()
