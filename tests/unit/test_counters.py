"""Counters must outlive a killed process, a full disk and a half-written line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hwtune.domain.errors import InputError
from hwtune.io.counters import COUNTERS_DIRECTORY, CounterFile, read_counters

COUNT_THEN_HANG = """
import pathlib, sys, time
from hwtune.io.counters import CounterFile
counters = CounterFile(pathlib.Path(sys.argv[1]), "n1")
for _ in range(1000):
    counters.view[counters.slot("page_decode", "hit")] += 1
print("counted", flush=True)
time.sleep(60)
"""


def test_counts_survive_sigkill(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", COUNT_THEN_HANG, str(tmp_path)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"counted\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    (count,) = read_counters(tmp_path)
    assert (count.process, count.nonce, count.kernel, count.outcome, count.calls) == (
        process.pid,
        "n1",
        "page_decode",
        "hit",
        1000,
    )


def test_a_key_keeps_its_slot(tmp_path: Path) -> None:
    counters = CounterFile(tmp_path, "n")
    first = counters.slot("k", "fallback", "a")
    assert counters.slot("k", "fallback", "b") != first
    assert counters.slot("k", "fallback", "a") == first


def test_a_line_cut_by_a_crash_is_left_out(tmp_path: Path) -> None:
    counters = CounterFile(tmp_path, "n")
    counters.view[counters.slot("k", "hit")] += 2
    keys = tmp_path / COUNTERS_DIRECTORY / f"{os.getpid()}.jsonl"
    with keys.open("a") as file:
        file.write('{"slot": 1, "nonce": "n", "ker')
    assert [count.calls for count in read_counters(tmp_path)] == [2]


def test_an_unwritable_directory_costs_the_evidence_not_the_service(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    counters = CounterFile(blocked, "n")
    assert counters.lost is not None
    counters.view[counters.slot("k", "hit")] += 1


def test_a_directory_without_counters_counts_nothing(tmp_path: Path) -> None:
    assert read_counters(tmp_path) == ()


def test_damage_is_named(tmp_path: Path) -> None:
    directory = tmp_path / COUNTERS_DIRECTORY
    directory.mkdir()
    (directory / "12.jsonl").write_text("{}\n")
    (directory / "12.bin").write_bytes(bytes(8))
    with pytest.raises(InputError, match=r"12\.jsonl: damaged kernel counters"):
        read_counters(tmp_path)
