"""Copies a server's output to its log and to the terminal, whatever becomes of either."""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

Echo = Callable[[str], None]

_TAIL_LINES = 400
_TAIL_LINE_BYTES = 2000


class LogCopy:
    """Reads a child's output to its end: a full pipe would block the server.

    A disk that fills up costs lines of the log, not the server; when there is room again the log
    goes on, with a line that says how many are missing. The last lines stay in memory.
    """

    def __init__(self, child: subprocess.Popen[bytes], path: Path, echo: Echo | None) -> None:
        self.lost: str | None = None
        """Why the log is incomplete; None while it is not."""
        self.bytes_seen = 0
        """Bytes of output so far."""
        self._missing = 0
        self._tail: collections.deque[bytes] = collections.deque(maxlen=_TAIL_LINES)
        self._child = child
        self._path = path
        self._echo = echo
        self._thread = threading.Thread(target=self._copy, name="hwtune-log", daemon=True)
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Waits until the child's output has ended, and lets go of it."""
        self._thread.join(timeout_s)
        if self._child.stdout is not None and not self._thread.is_alive():
            self._child.stdout.close()
        if not self._path.exists():
            self.lost = f"{self._path}: deleted while the server ran"

    def tail(self) -> tuple[str, ...]:
        """The last lines, also when the log itself is gone."""
        return tuple(line.decode("utf-8", "replace").rstrip("\n") for line in list(self._tail))

    def _copy(self) -> None:
        assert self._child.stdout is not None
        with contextlib.ExitStack() as files:
            write = self._open(files)
            for line in self._child.stdout:
                self.bytes_seen += len(line)
                self._tail.append(line[:_TAIL_LINE_BYTES])
                if write is not None:
                    self._keep(write, line)
                self._show(line)

    def _open(self, files: contextlib.ExitStack) -> Callable[[bytes], int | None] | None:
        try:
            return files.enter_context(self._path.open("ab", buffering=0)).write
        except OSError as error:
            self.lost = f"{self._path}: {error.strerror}"
            return None

    def _keep(self, write: Callable[[bytes], int | None], line: bytes) -> None:
        try:
            if self._missing:
                note = f"\nhwtune: {self._missing} lines are missing here: {self.lost}\n"
                _write_all(write, note.encode())
                self._missing = 0
            _write_all(write, line)
        except OSError as error:
            self._missing += 1
            self.lost = f"{self._path}: {error.strerror}"

    def _show(self, line: bytes) -> None:
        if self._echo is None:
            return
        try:
            self._echo(line.decode("utf-8", "replace").rstrip("\n"))
        except Exception:  # the reader has gone, the disk is full, there is no output at all
            self._echo = None


def _write_all(write: Callable[[bytes], int | None], data: bytes) -> None:
    """Raises OSError when not everything fits: a disk that fills up takes the beginning."""
    if (write(data) or 0) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
