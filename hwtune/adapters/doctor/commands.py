"""Runs a command that may hang, and says why when there is no answer."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO

from hwtune.domain.doctor.records import CommandOutput

TIMEOUT_S = 10.0
"""A healthy SMI tool answers within two seconds, also on a machine with 16 chips."""

_PLACES = ("/opt/hyhal/bin", "/opt/dtk/bin", "/opt/rocm/bin", "/usr/local/sbin", "/usr/local/bin")
"""Where vendors put their tools without adding them to PATH."""

_LARGEST_BYTES = 8 * 2**20
_AFTER_KILL_S = 1.0


def run(
    argv: Sequence[str],
    *,
    timeout_s: float = TIMEOUT_S,
    environment: Mapping[str, str] | None = None,
) -> CommandOutput:
    """What a command printed; never raises and never waits longer than asked.

    The command gets a session of its own and is ended with everything it started. Its output goes
    to a file: a child that survives inside the kernel (state D) would keep a pipe open for ever.
    """
    program = _find(argv[0])
    if program is None:
        return CommandOutput(argv=tuple(argv), failure="not installed", installed=False)
    variables = {**os.environ, "LC_ALL": "C", **(environment or {})}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
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
        status = _wait(child, timeout_s)
        return _output(tuple(argv), status, _read(out), _read(err), timeout_s)


def run_all(commands: Mapping[str, Sequence[str]]) -> dict[str, CommandOutput]:
    """Several commands at once, so that one that hangs costs its own time only."""
    with ThreadPoolExecutor(max_workers=max(1, len(commands))) as pool:
        return dict(zip(commands, pool.map(run, commands.values()), strict=True))


def _find(name: str) -> str | None:
    if "/" in name:
        return name if os.access(name, os.X_OK) else None
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(_PLACES))


def _wait(child: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    """Exit status; None when it did not end in time (it is ended then)."""
    try:
        return child.wait(timeout_s)
    except subprocess.TimeoutExpired:
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
