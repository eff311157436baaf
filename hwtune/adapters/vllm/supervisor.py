"""Stands between hwtune and a server: ``python -m hwtune.adapters.vllm.supervisor OWNER COMMAND…``.

Ends with the command's exit status (128 + n when signal n ended it), and never before the command's
whole family has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys

from hwtune.adapters.vllm.processes import FAMILY_VARIABLE, GRACE_S, family, kill_family

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class _Stop(Exception):
    """Asked to stop, by hwtune or by the kernel because hwtune died."""


def main() -> int:
    """Runs the command; returns its exit status."""
    owner, command = int(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None)
    # The kernel tells when hwtune dies, and hands orphans of the command to this process.
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for stop in _STOPS:
        signal.signal(stop, _stop)
    if os.getppid() != owner:
        return 1
    os.environ[FAMILY_VARIABLE] = str(os.getpid())
    child = subprocess.Popen(command)
    with contextlib.suppress(_Stop):
        child.wait()
    for stop in _STOPS:
        signal.signal(stop, signal.SIG_IGN)
    _end(child)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _stop(signum: int, frame: object) -> None:
    raise _Stop


def _end(child: subprocess.Popen[bytes]) -> None:
    known = family(os.getpid())
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_S)
    if child.poll() is None:
        child.kill()
        child.wait()
    kill_family(os.getpid(), known)


if __name__ == "__main__":
    sys.exit(main())
