"""Kernel counters that outlive the process that counts: ``counters/<pid>-<host>.bin`` and
``.jsonl``.

Each is a :class:`~hwtune.io.shared_table.SharedTable` of one word per kernel, outcome and reason.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast, get_args

from hwtune.domain.evidence import KernelCount, KernelOutcome
from hwtune.io.shared_table import SharedTable, damaged, host, read_tables, text_of

COUNTERS_DIRECTORY = "counters"
_SLOTS = 4096
_OVERFLOW = ("-", "fallback", "too many reasons to count apart")


class CounterFile(SharedTable):
    """The writing side, one per vLLM process."""

    def __init__(
        self, run_dir: Path, nonce: str, on_loss: Callable[[str], None] = lambda reason: None
    ) -> None:
        super().__init__(run_dir / COUNTERS_DIRECTORY, _SLOTS, on_loss)
        self._nonce = nonce
        self._slots: dict[tuple[str, str, str], int] = {}
        self.slot(*_OVERFLOW)

    def slot(self, kernel: str, outcome: str, reason: str = "") -> int:
        """Index into ``view`` for a key; keys beyond what fits share one."""
        key = (kernel, outcome, reason)
        index = self._slots.get(key)
        if index is None:
            index = self._slots[key] = self._new_slot(key)
        return index

    def _new_slot(self, key: tuple[str, str, str]) -> int:
        index = len(self._slots)
        if index >= _SLOTS:
            return 0
        kernel, outcome, reason = key
        line = {
            "slot": index,
            "nonce": self._nonce,
            "host": host(),
            "kernel": kernel,
            "outcome": outcome,
            "reason": reason,
        }
        return index if self.append_key(line) else 0


def read_counters(run_dir: Path) -> tuple[KernelCount, ...]:
    """All counts of a run directory; also while the server runs, or after it was killed.

    Raises:
        InputError: a counter file is damaged.
    """
    directory = run_dir / COUNTERS_DIRECTORY
    counts = [_count(directory, *row) for row in read_tables(directory)]
    return tuple(c for c in counts if c.calls or (c.kernel, c.outcome, c.reason) != _OVERFLOW)


def _count(directory: Path, process: int, key: dict[str, Any], words: memoryview) -> KernelCount:
    try:
        return KernelCount(
            process=process,
            host=text_of(key, "host", ""),
            nonce=text_of(key, "nonce"),
            kernel=text_of(key, "kernel"),
            outcome=_outcome(text_of(key, "outcome")),
            reason=text_of(key, "reason"),
            calls=words[key["slot"]],
        )
    except (KeyError, TypeError, IndexError) as error:
        raise damaged(directory / f"{process}.jsonl", error) from None


def _outcome(text: str) -> KernelOutcome:
    if text not in get_args(KernelOutcome):
        message = f"outcome {text[:40]!r} is none that is counted"
        raise TypeError(message)
    return cast(KernelOutcome, text)
