"""Logs that still grow: what was appended since the last look, as blocks of whole lines."""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path
from typing import IO, Protocol

from hwtune.domain.errors import InputError, UsageError
from hwtune.io.logs import GZIP_MAGIC, STDIN

_CHUNK_BYTES = 1 << 20
_MAX_LINE_BYTES = 1 << 20
_MAX_CHUNKS = 8
"""Read at one look; a log that is long already comes in several."""


class Tail(Protocol):
    """A log that is looked at again and again."""

    name: str
    ended: bool
    """Whether nothing can come any more."""

    def poll(self, wait_s: float) -> list[tuple[int, bytes]]:
        """Blocks ``(number of the first line, bytes of whole lines)`` that are new."""
        ...

    def flush(self) -> list[tuple[int, bytes]]:
        """The last line, if it lacks its line end so far."""
        ...

    def close(self) -> None:
        """Ends the looking."""
        ...


def open_tail(name: str) -> Tail:
    """A file, which need not exist yet, or ``-`` for standard input."""
    return TailedInput() if name == STDIN else TailedFile(name)


class _Lines:
    """Chunks in, blocks of whole lines out; a line of more than 1 MiB is cut."""

    def __init__(self) -> None:
        self.number = 1
        self._rest = b""
        self._skipping = False

    def add(self, chunk: bytes) -> list[tuple[int, bytes]]:
        if self._skipping:
            _, newline, chunk = chunk.partition(b"\n")
            self._skipping = not newline
        head, newline, tail = chunk.rpartition(b"\n")
        blocks = []
        if newline:
            blocks.append(self._block(self._rest + head))
            self._rest = tail
        else:
            self._rest += tail
        if len(self._rest) > _MAX_LINE_BYTES:
            blocks.append(self._block(self._rest[:_MAX_LINE_BYTES]))
            self._rest, self._skipping = b"", True
        return blocks

    def flush(self) -> list[tuple[int, bytes]]:
        rest, self._rest = self._rest, b""
        return [self._block(rest)] if rest else []

    def _block(self, data: bytes) -> tuple[int, bytes]:
        number = self.number
        self.number += data.count(b"\n") + 1
        return number, data


class TailedFile:
    """A file by its name: what replaces it after a rotation is read as well.

    A file that becomes shorter was truncated and is read from its beginning again. Line numbers
    start at 1 in each.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.ended = False
        self._file: IO[bytes] | None = None
        self._lines = _Lines()

    def poll(self, wait_s: float) -> list[tuple[int, bytes]]:
        """What was appended.

        Raises:
            InputError: a directory, unreadable, compressed, or not text.
        """
        if self._file is None and not self._open():
            return []
        blocks = self._read()
        if len(blocks) < _MAX_CHUNKS and self._is_replaced():
            blocks += self._lines.flush()
            self.close()
            if self._open():
                blocks += self._read()
        return blocks

    def flush(self) -> list[tuple[int, bytes]]:
        """The last line, if it lacks its line end so far."""
        return self._lines.flush()

    def _open(self) -> bool:
        try:
            self._file = Path(self.name).open("rb")  # noqa: SIM115 - kept between looks
        except FileNotFoundError:
            return False
        except OSError as error:
            message = f"{self.name}: cannot read the log: {error.strerror or error}"
            raise InputError(message) from None
        self._lines = _Lines()
        return True

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _read(self) -> list[tuple[int, bytes]]:
        blocks: list[tuple[int, bytes]] = []
        while self._file is not None and len(blocks) < _MAX_CHUNKS:
            at_start = self._file.tell() == 0
            try:
                chunk = self._file.read(_CHUNK_BYTES)
            except OSError as error:
                message = f"{self.name}: cannot read the log: {error.strerror or error}"
                raise InputError(message) from None
            if not chunk:
                break
            if at_start:
                _refuse(chunk, self.name)
            blocks += self._lines.add(chunk)
        return blocks

    def _is_replaced(self) -> bool:
        """Another file has the name, or the same one was cut short."""
        if self._file is None:
            return False
        try:
            now = Path(self.name).stat()
        except OSError:
            return False  # between the two steps of a rotation
        mine = os.fstat(self._file.fileno())
        return (now.st_dev, now.st_ino) != (mine.st_dev, mine.st_ino) or (
            now.st_size < self._file.tell()
        )


class TailedInput:
    """Standard input, as ``kubectl logs -f`` or ``docker logs -f`` feeds it."""

    def __init__(self) -> None:
        self.name = "standard input"
        self.ended = False
        self._lines = _Lines()
        self._first = True

    def poll(self, wait_s: float) -> list[tuple[int, bytes]]:
        """What has come; waits at most ``wait_s`` seconds for something.

        Raises:
            InputError: compressed, or not text.
        """
        blocks: list[tuple[int, bytes]] = []
        source = sys.stdin.buffer.fileno()
        while not self.ended and len(blocks) < _MAX_CHUNKS:
            if not select.select([source], [], [], 0.0 if blocks else wait_s)[0]:
                break
            chunk = os.read(source, _CHUNK_BYTES)
            self.ended = not chunk
            if self._first and chunk:
                _refuse(chunk, self.name)
                self._first = False
            blocks += self._lines.add(chunk) if chunk else []
        return blocks

    def flush(self) -> list[tuple[int, bytes]]:
        """The last line, if it lacks its line end so far."""
        return self._lines.flush()

    def close(self) -> None:
        """Standard input stays open."""


def _refuse(chunk: bytes, name: str) -> None:
    if chunk.startswith(GZIP_MAGIC):
        message = f"{name}: --follow reads plain text, and this is compressed; read it without"
        raise UsageError(message)
    if b"\0" in chunk[:8192]:
        message = f"{name}: not a text log (it holds NUL bytes)"
        raise InputError(message)
