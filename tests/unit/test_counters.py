"""Counters must outlive a killed process, a full disk and a half-written line."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import tracemalloc
import warnings
from pathlib import Path

import pytest

from hwtune.domain.errors import InputError
from hwtune.io.counters import COUNTERS_DIRECTORY, CounterFile, read_counters
from tests.support import calls_of

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


def test_counts_survive_the_loss_of_their_directory_while_they_are_written(tmp_path: Path) -> None:
    counters = CounterFile(tmp_path, "n")
    shutil.rmtree(tmp_path / COUNTERS_DIRECTORY)
    counters.view[counters.slot("k", "hit")] += 1
    assert counters.view[counters.slot("k", "hit")] == 1


def test_a_new_key_needs_no_room_on_the_disk(tmp_path: Path) -> None:
    counters = CounterFile(tmp_path, "n")
    before = _soft_limit(resource.RLIMIT_FSIZE, 0)  # from here on no file may grow
    try:
        counters.view[counters.slot("k", "fallback", "new")] += 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert counters.lost is None
    assert [(count.reason, count.calls) for count in read_counters(tmp_path)] == [("new", 2)]


def test_a_disk_without_room_is_seen_when_the_files_are_made(tmp_path: Path) -> None:
    before = _soft_limit(resource.RLIMIT_FSIZE, 1000)
    try:
        counters = CounterFile(tmp_path, "n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert counters.lost is not None
    counters.view[counters.slot("k", "hit")] += 1
    assert list((tmp_path / COUNTERS_DIRECTORY).iterdir()) == []


def _soft_limit(which: int, value: int) -> tuple[int, int]:
    before = resource.getrlimit(which)
    resource.setrlimit(which, (value, before[1]))
    return before


def test_keys_beyond_what_fits_share_one_count_that_says_so(tmp_path: Path) -> None:
    counters = CounterFile(tmp_path, "n")
    for number in range(5000):
        counters.view[counters.slot("k", "fallback", f"reason {number:0200}")] += 1
    counts = read_counters(tmp_path)
    assert sum(count.calls for count in counts) == 5000
    (rest,) = [count for count in counts if count.kernel == "-"]
    assert rest.reason == "too many reasons to count apart"
    assert rest.calls > 1000
    assert counters.lost is not None


def test_a_forked_child_counts_in_files_of_its_own(tmp_path: Path) -> None:
    counters = CounterFile(tmp_path, "n")
    slot = counters.slot("k", "hit")
    counters.view[slot] += 5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads of this process
        child = os.fork()
    if not child:
        counters.view[slot] += 2
        counters.view[counters.slot("k", "fallback", "only the child")] += 1
        os._exit(0)
    os.waitpid(child, 0)
    counters.view[slot] += 1
    counted = {(c.process, c.outcome, c.reason): c.calls for c in read_counters(tmp_path)}
    assert counted == {
        (os.getpid(), "hit", ""): 6,
        (child, "hit", ""): 2,
        (child, "fallback", "only the child"): 1,
    }


def test_what_a_process_left_is_not_touched_by_the_next_of_its_number(tmp_path: Path) -> None:
    first = CounterFile(tmp_path, "n")
    second = CounterFile(tmp_path, "n")
    first.view[first.slot("k", "hit")] += 7
    second.view[second.slot("k", "hit")] += 1
    assert [count.calls for count in read_counters(tmp_path)] == [1]


def test_counting_makes_no_system_call_takes_no_lock_and_keeps_no_memory(tmp_path: Path) -> None:
    counters = CounterFile(tmp_path, "n")
    known = counters.slot("k", "hit")

    def count() -> None:
        for _ in range(1000):
            counters.view[known] += 1

    assert calls_of(count) == set()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    count()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 200


def test_a_key_keeps_its_slot(tmp_path: Path) -> None:
    counters = CounterFile(tmp_path, "n")
    first = counters.slot("k", "fallback", "a")
    assert counters.slot("k", "fallback", "b") != first
    assert counters.slot("k", "fallback", "a") == first


def test_a_line_cut_by_a_crash_is_left_out(tmp_path: Path) -> None:
    counters = CounterFile(tmp_path, "n")
    counters.view[counters.slot("k", "hit")] += 2
    (keys,) = (tmp_path / COUNTERS_DIRECTORY).glob(f"{os.getpid()}-*.jsonl")
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


def test_two_nodes_with_one_process_id_keep_their_own_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(("node-a", "node_b.cluster"), start=1):
        monkeypatch.setattr("socket.gethostname", lambda name=name: name)
        file = CounterFile(tmp_path, "n")
        file.view[file.slot("page_decode", "hit")] += number
    counts = {(c.host, c.calls) for c in read_counters(tmp_path)}
    assert counts == {("node-a", 1), ("node_b_cluster", 2)}
    assert {c.process for c in read_counters(tmp_path)} == {os.getpid()}
