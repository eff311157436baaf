"""Kernel counters that outlive the process that counts.

Each vLLM process maps ``counters/<pid>.bin``, an array of unsigned 64-bit slots, and adds to a
slot with one memory write: no system call, no lock. The pages belong to the file, so a process
killed with SIGKILL loses nothing. ``counters/<pid>.jsonl`` says what each slot counts; a line is
appended when a new key is first seen, before its slot is used.
"""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path

from hwtune.domain.errors import InputError
from hwtune.domain.evidence import KernelCount

COUNTERS_DIRECTORY = "counters"
_SLOTS = 4096
_SLOT_BYTES = 8


class CounterFile:
    """The writing side, one per vLLM process.

    When the directory cannot be written the counts are kept in memory only, and ``lost`` says
    why: serving goes on, the evidence does not.
    """

    def __init__(self, run_dir: Path, nonce: str) -> None:
        self.lost: str | None = None
        self._nonce = nonce
        self._slots: dict[tuple[str, str, str], int] = {}
        self._keys = run_dir / COUNTERS_DIRECTORY / f"{os.getpid()}.jsonl"
        self.view = self._map(run_dir)

    def _map(self, run_dir: Path) -> memoryview:
        size = _SLOTS * _SLOT_BYTES
        try:
            directory = run_dir / COUNTERS_DIRECTORY
            directory.mkdir(parents=True, exist_ok=True)
            self._keys.unlink(missing_ok=True)  # a process id may come round again
            with (directory / f"{os.getpid()}.bin").open("w+b") as file:
                # Written, not truncated to size: a full disk must show here, not as SIGBUS later.
                file.write(bytes(size))
                file.flush()
                return memoryview(mmap.mmap(file.fileno(), size)).cast("Q")
        except OSError as error:
            self.lost = f"cannot write {run_dir}: {error.strerror}"
            return memoryview(bytearray(size)).cast("Q")

    def slot(self, kernel: str, outcome: str, reason: str = "") -> int:
        """Index into ``view`` for a key; the last slot collects what no longer fits."""
        key = (kernel, outcome, reason)
        index = self._slots.get(key)
        if index is None:
            index = min(len(self._slots), _SLOTS - 1)
            self._slots[key] = index
            self._append_key(index, key)
        return index

    def _append_key(self, index: int, key: tuple[str, str, str]) -> None:
        kernel, outcome, reason = key
        line = {
            "slot": index,
            "nonce": self._nonce,
            "kernel": kernel,
            "outcome": outcome,
            "reason": reason,
        }
        try:
            with self._keys.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            self.lost = f"cannot write {self._keys}: {error.strerror}"


def read_counters(run_dir: Path) -> tuple[KernelCount, ...]:
    """All counts of a run directory; also while the server runs, or after it was killed.

    Raises:
        InputError: a counter file is damaged.
    """
    counts: list[KernelCount] = []
    for keys in sorted((run_dir / COUNTERS_DIRECTORY).glob("*.jsonl")):
        counts.extend(_read_process(keys))
    return tuple(counts)


def _read_process(keys: Path) -> list[KernelCount]:
    try:
        process = int(keys.stem)
        slots = memoryview(keys.with_suffix(".bin").read_bytes()).cast("Q")
        lines = keys.read_text(encoding="utf-8").splitlines(keepends=True)
        # A line without its newline was cut by a crash; its slot was never used.
        records = [json.loads(line) for line in lines if line.endswith("\n")]
        return [
            KernelCount(
                process=process,
                nonce=record["nonce"],
                kernel=record["kernel"],
                outcome=record["outcome"],
                reason=record["reason"],
                calls=slots[record["slot"]],
            )
            for record in records
        ]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        message = f"{keys}: damaged kernel counters ({error}); delete the pair of files to go on"
        raise InputError(message) from None
