"""No process stays behind: not a stubborn child, not an orphan, not a worker in its own session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

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
between = os.fork()
if between == 0:
    if os.fork() == 0:
        time.sleep(60)
    os._exit(0)
os.waitpid(between, 0)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print("up", flush=True)
time.sleep(60)
"""


KILLED_BY_9 = "import os; os.kill(os.getpid(), 9)"


def started(code: str) -> subprocess.Popen[bytes]:
    child = spawn([sys.executable, "-c", code], os.environ)
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    return child


def close(child: subprocess.Popen[bytes]) -> None:
    assert child.stdout is not None
    child.stdout.close()


def test_the_whole_family_ends() -> None:
    child = started(ORPHANING)
    members = family(child.pid)
    assert len(members) == 4  # supervisor, command, orphan, worker in its own session
    stop_tree(child)
    close(child)
    assert child.returncode is not None
    assert not family(child.pid, members)


def test_a_supervisor_that_does_not_answer_is_killed_with_its_family(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hwtune.adapters.vllm.processes._KILL_S", 0.5)
    child = started(STUBBORN)
    members = family(child.pid)
    stop_tree(child, grace_s=0.1)
    close(child)
    assert not family(child.pid, members)


def test_a_command_that_ends_takes_its_orphans_along() -> None:
    ending, _ = ORPHANING.rsplit("time.sleep", 1)
    child = started(ending)
    members = family(child.pid)
    child.wait(20)
    close(child)
    assert not family(child.pid, members)


@pytest.mark.parametrize(("code", "status"), [("exit(3)", 3), (KILLED_BY_9, 128 + 9)])
def test_the_exit_status_is_the_commands(code: str, status: int) -> None:
    child = spawn([sys.executable, "-c", code], os.environ)
    assert child.wait(20) == status
    close(child)


def test_the_family_ends_when_its_owner_is_killed() -> None:
    owner_code = (
        "import os, sys, time\n"
        "from hwtune.adapters.vllm.processes import spawn\n"
        f"child = spawn([sys.executable, '-c', {ORPHANING!r}], os.environ)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", owner_code], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    child = int(owner.stdout.readline())
    members = family(child)
    assert len(members) == 4
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    while family(child, members):
        time.sleep(0.02)
