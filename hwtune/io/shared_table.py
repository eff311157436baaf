"""A table in memory that files share, so that it outlives the process that writes it.

``<pid>-<host>.bin`` is an array of 64-bit words and ``<pid>-<host>.jsonl`` one JSON line for each key that the
words belong to, both mapped at their full size when the table is made. From then on a count, and
a new key too, is a write to memory: no system call, no lock. The pages belong to the files, so a
process killed with SIGKILL loses nothing; the files' blocks exist, so a disk that fills up later
costs nothing either.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import socket
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hwtune.domain.errors import InputError
from hwtune.domain.json_text import parse_json

_WORD_BYTES = 8
_LINES_BYTES = 256 * 1024
"""Room for some 1500 keys; what is not used yet is newlines."""


class SharedTable:
    """The writing side, one per process; a child made by fork gets files of its own.

    When the directory cannot be written the words are kept in memory only: serving goes on, the
    evidence does not. ``lost`` says why, and ``on_loss`` is told once.
    """

    def __init__(
        self, directory: Path, num_words: int, on_loss: Callable[[str], None] = lambda reason: None
    ) -> None:
        self.lost: str | None = None
        self._on_loss = on_loss
        self._directory = directory
        self._num_words = num_words
        self._written: list[bytes] = []
        self._map()
        os.register_at_fork(after_in_child=_Remap(self))

    def _map(self) -> None:
        stem = self._directory / f"{os.getpid()}-{host()}"
        words, lines = stem.with_suffix(".bin"), stem.with_suffix(".jsonl")
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self.view = _mapped(words, bytes(self._num_words * _WORD_BYTES)).cast("Q")
            self._lines = _mapped(lines, b"\n" * _LINES_BYTES)
        except OSError as error:
            self._lose(f"cannot write {self._directory}: {error.strerror}")
            for path in (words, lines):  # half a pair would read as damaged evidence
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
            self.view = memoryview(bytearray(self._num_words * _WORD_BYTES)).cast("Q")
            self._lines = memoryview(bytearray(_LINES_BYTES))
        self.reals = self.view.cast("B").cast("d")
        """The same words as float64."""
        self._end = 0

    def _lose(self, reason: str) -> None:
        if self.lost is None:
            self.lost = reason
            self._on_loss(reason)

    def append_key(self, key: Mapping[str, Any]) -> bool:
        """Says what some words belong to, before they are used; False when there is no room."""
        line = json.dumps(key).encode()
        if self._end + len(line) >= len(self._lines):
            self._lose(f"{self._directory}: no room for more keys")
            return False
        self._lines[self._end : self._end + len(line)] = line
        self._end += len(line) + 1
        self._written.append(line)
        return True

    def remap(self) -> None:
        """In a forked child: leaves the parent's files alone and starts its own at zero."""
        written, self._written = self._written, []
        self._map()
        for line in written:
            self.append_key(parse_json(line))


def host() -> str:
    """This machine's name in a file name: workers on two nodes may have the same process id."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", socket.gethostname()) or "_"


class _Remap:
    """Keeps no table alive: a handler of ``os.register_at_fork`` can never be taken away."""

    def __init__(self, table: SharedTable) -> None:
        self._table = weakref.ref(table)

    def __call__(self) -> None:
        table = self._table()
        if table is not None:
            table.remap()


def _mapped(path: Path, content: bytes) -> memoryview:
    # A process id may come round again; what an earlier process left must stay what it is until
    # then, so the name gets a new file.
    path.unlink(missing_ok=True)
    with path.open("x+b") as file:
        # Written, not truncated to size: a full disk must show here, not as SIGBUS later.
        file.write(content)
        file.flush()
        return memoryview(mmap.mmap(file.fileno(), len(content)))


def read_tables(directory: Path) -> list[tuple[int, dict[str, Any], memoryview]]:
    """Process, key and all words of its process, of every key in a directory.

    Raises:
        InputError: a pair of files is damaged.
    """
    rows = []
    for path in sorted(directory.glob("*.jsonl")):
        try:
            process = int(path.stem.partition("-")[0])
            words = memoryview(path.with_suffix(".bin").read_bytes()).cast("Q")
            keys = _keys(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, TypeError) as error:
            raise damaged(path, error) from None
        rows += [(process, key, words) for key in keys]
    return rows


def _keys(text: str) -> list[dict[str, Any]]:
    lines = [line for line in text.strip().split("\n") if line]
    keys = []
    for number, line in enumerate(lines, start=1):
        try:
            key = parse_json(line)
        except ValueError:
            if number < len(lines):
                raise
            continue  # cut by a crash; its words were never used
        if not isinstance(key, dict):
            message = f"line {number} is not an object"
            raise TypeError(message)
        keys.append(key)
    return keys


def text_of(key: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """A text of a key.

    Raises:
        KeyError, TypeError: it is missing, or no text.
    """
    value = key[name] if default is None else key.get(name, default)
    if not isinstance(value, str):
        message = f"{name} is not a text"
        raise TypeError(message)
    return value


def damaged(path: Path, error: Exception) -> InputError:
    """What to say of a pair of files that is not what this module writes."""
    return InputError(
        f"{path}: damaged kernel counters ({error}); delete the pair of files to go on"
    )
