"""Runs a command that may hang, and says why when there is no answer."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from hwtune.domain.doctor.records import CommandOutput

TIMEOUT_S = 10.0
"""A healthy SMI tool answers within two seconds, also on a machine with 16 chips."""

_PLACES = ("/opt/hyhal/bin", "/opt/dtk/bin", "/opt/rocm/bin", "/usr/local/sbin", "/usr/local/bin")
"""Where vendors put their tools without adding them to PATH."""

_LARGEST_BYTES = 8 * 2**20
_AFTER_KILL_S = 1.0
_LOOK_S = 0.05


def run(
    argv: Sequence[str],
    *,
    timeout_s: float = TIMEOUT_S,
    environment: Mapping[str, str] | None = None,
) -> CommandOutput:
    """What a command printed; never raises and never waits longer than asked.

    The command gets a session of its own and is ended with everything it started, also when it
    prints without end. Its output goes to files in memory: a child that survives inside the kernel
    (state D) would keep a pipe open for ever, and a full disk must not stop a doctor.
    """
    program = find(argv[0])
    if program is None:
        return CommandOutput(argv=tuple(argv), failure="not installed", installed=False)
    variables = {**os.environ, "LC_ALL": "C", **(environment or {})}
    with _scratch() as out, _scratch() as err:
        try:
            child = subprocess.Popen(
                [program, *argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=variables,
                start_new_session=True,
            )
        except OSError as error:
            return CommandOutput(argv=tuple(argv), failure=f"cannot be run: {error.strerror}")
        status = _wait(child, timeout_s, (out, err))
        if _size(out, err) > _LARGEST_BYTES:
            failure = f"printed more than {_LARGEST_BYTES >> 20} MiB"
            return CommandOutput(argv=tuple(argv), stdout=_read(out), failure=failure)
        return _output(tuple(argv), status, _read(out), _read(err), timeout_s)


def run_all(commands: Mapping[str, Sequence[str]]) -> dict[str, CommandOutput]:
    """Several commands at once, so that one that hangs costs its own time only."""
    with ThreadPoolExecutor(max_workers=max(1, len(commands))) as pool:
        return dict(zip(commands, pool.map(run, commands.values()), strict=True))


def find(name: str) -> str | None:
    """The program that a name or path means; None when there is none that may be run."""
    if "/" in name:
        return name if Path(name).is_file() and os.access(name, os.X_OK) else None
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(_PLACES))


def _scratch() -> IO[bytes]:
    return os.fdopen(os.memfd_create("hwtune-doctor"), "w+b")


def _size(*files: IO[bytes]) -> int:
    return max(os.fstat(file.fileno()).st_size for file in files)


def _wait(
    child: subprocess.Popen[bytes], timeout_s: float, files: Sequence[IO[bytes]]
) -> int | None:
    """Exit status; None when it did not end in time or printed too much (it is ended then)."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until and _size(*files) <= _LARGEST_BYTES:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(min(_LOOK_S, timeout_s))
    with contextlib.suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_AFTER_KILL_S)
    return None


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_LARGEST_BYTES).decode("utf-8", "replace")


def _output(
    argv: tuple[str, ...], status: int | None, out: str, err: str, timeout_s: float
) -> CommandOutput:
    if status is None:
        failure = f"no answer within {timeout_s:g} s"
        return CommandOutput(argv=argv, stdout=out, failure=failure, timed_out=True)
    if status != 0:
        said = [line.strip() for line in (*err.splitlines(), *out.splitlines()) if line.strip()]
        # A traceback says what went wrong last, a tool first.
        text = said[-1] if said and said[0].startswith("Traceback") else "".join(said[:1])
        failure = f"exit status {status}" + (f": {text[:300]}" if text else "")
        return CommandOutput(argv=argv, stdout=out, failure=failure)
    return CommandOutput(argv=argv, stdout=out)
