"""A run directory: everything one server left behind.

``plan.json`` (the launch plan), ``server.log``, ``counters/``, ``status.json`` (how far it got),
``metrics.txt`` (its Prometheus page), ``environment.json`` (packages, variables, machine),
``report.json`` (what was verified).
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from hwtune.domain.errors import InputError

_STATUS_BYTES = 4096
State = Literal["starting", "ready", "stopped", "died"]

LOG_FILE = "server.log"
STATUS_FILE = "status.json"
METRICS_FILE = "metrics.txt"
REPORT_FILE = "report.json"
ENVIRONMENT_FILE = "environment.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """How far a server got, as its launcher writes it down."""

    state: State
    url: str
    pid: int
    """Process id of the supervisor, which ends with the server and all its workers."""
    owner_pid: int
    """Process id of the hwtune that runs it."""
    started_at: str
    """ISO 8601, UTC."""
    ended_at: str | None = None
    exit_code: int | None = None
    reason: str | None = None
    """Why it ended, in one line."""
    trouble: str | None = None
    """What the watchdog found wrong with the running server, if it did not end since."""
    evidence_lost: tuple[str, ...] = ()
    """Evidence that could not be kept, and why."""


def create_run_dir(path: Path) -> Path:
    """Makes a run directory for one server.

    Raises:
        InputError: it already holds a run, or cannot be created.
    """
    if path.exists() and not path.is_dir():
        message = f"{path}: is a file; --run-dir takes a new directory"
        raise InputError(message)
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / LOG_FILE).touch(exist_ok=False)
    except FileExistsError:
        message = f"{path}: already holds a run; give --run-dir a new directory"
        raise InputError(message) from None
    except OSError as error:
        message = f"{path}: cannot create the run directory: {error.strerror}"
        raise InputError(message) from None
    return path.resolve()


def write_status(run_dir: Path, status: ServerStatus) -> str | None:
    """Replaces ``status.json`` whole; returns why not, instead of raising.

    On a full disk the old file is written over where it lies: it is as long as any later status.
    """
    text = json.dumps(asdict(status), indent=2)
    text = text.ljust(_STATUS_BYTES - 1, "\n") + "\n"
    path = run_dir / STATUS_FILE
    lost = write_quietly(path, text)
    return None if lost is None or _overwrite(path, text) else lost


def _overwrite(path: Path, text: str) -> bool:
    data = text.encode()
    try:
        with path.open("r+b", buffering=0) as file:
            return len(data) <= path.stat().st_size and file.write(data) == len(data)
    except OSError:
        return False


def write_quietly(path: Path, text: str) -> str | None:
    """Writes a file whole or not at all; returns why not, instead of raising.

    For evidence written while a server runs: losing it must not stop the server.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        return f"{path}: {error.strerror}"
    return None
