"""What checked mode found, in memory that outlives the process: ``checks/<pid>.bin`` and ``.jsonl``.

Each is a :class:`~hwtune.io.shared_table.SharedTable` of seven words per kernel and layer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hwtune.domain.checking import Difference, KernelCheck
from hwtune.io.shared_table import SharedTable, damaged, read_tables, text_of
from hwtune.io.typed import number

CHECKS_DIRECTORY = "checks"
_CHECKED, _FAILED, _NON_FINITE, _ABSOLUTE, _RELATIVE, _QUERY, _CONTEXT = range(7)
_ROW_WORDS = 8
_ROWS = 2048


class CheckFile(SharedTable):
    """The writing side, one per vLLM process."""

    def __init__(self, run_dir: Path, nonce: str, on_loss: Callable[[str], None]) -> None:
        super().__init__(run_dir / CHECKS_DIRECTORY, _ROWS * _ROW_WORDS, on_loss)
        self._nonce = nonce
        self._used = 1  # the first row takes what has no room, and is never read

    def row(self, kernel: str, layer: str, tolerance: float) -> CheckRow:
        """Where the checked calls of a kernel in a layer are recorded."""
        key = {
            "row": self._used,
            "nonce": self._nonce,
            "kernel": kernel,
            "layer": layer,
            "tolerance": tolerance,
        }
        if self._used >= _ROWS or not self.append_key(key):
            return CheckRow(self, 0)
        self._used += 1
        return CheckRow(self, self._used - 1)


class CheckRow:
    """One kernel in one layer; recording is a few writes to memory."""

    def __init__(self, table: CheckFile, row: int) -> None:
        self._table = table
        self._start = row * _ROW_WORDS

    def record(
        self, difference: Difference, query_len: int, context_len: int, *, failed: bool
    ) -> None:
        """One more checked call."""
        words, reals, start = self._table.view, self._table.reals, self._start
        words[start + _FAILED] += failed
        words[start + _NON_FINITE] += difference.non_finite
        reals[start + _ABSOLUTE] = max(reals[start + _ABSOLUTE], difference.absolute)
        if not words[start + _CHECKED] or difference.relative > reals[start + _RELATIVE]:
            reals[start + _RELATIVE] = difference.relative
            words[start + _QUERY], words[start + _CONTEXT] = query_len, context_len
        words[start + _CHECKED] += 1


def read_checks(run_dir: Path) -> tuple[KernelCheck, ...]:
    """Everything that checked mode recorded in a run directory; also while the server runs.

    Raises:
        InputError: a file is damaged.
    """
    directory = run_dir / CHECKS_DIRECTORY
    return tuple(_check(directory, *row) for row in read_tables(directory))


def _check(directory: Path, process: int, key: dict[str, Any], words: memoryview) -> KernelCheck:
    try:
        start = key["row"] * _ROW_WORDS
        reals = words.cast("B").cast("d")
        return KernelCheck(
            process=process,
            nonce=text_of(key, "nonce"),
            kernel=text_of(key, "kernel"),
            layer=text_of(key, "layer"),
            tolerance=number(key["tolerance"], "tolerance"),
            checked=words[start + _CHECKED],
            failed=words[start + _FAILED],
            non_finite=words[start + _NON_FINITE],
            worst_absolute=reals[start + _ABSOLUTE],
            worst_relative=reals[start + _RELATIVE],
            worst_query_len=words[start + _QUERY],
            worst_context_len=words[start + _CONTEXT],
        )
    except (KeyError, TypeError, IndexError) as error:
        raise damaged(directory / f"{process}.jsonl", error) from None
