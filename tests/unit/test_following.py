"""Logs that grow while they are read."""

from __future__ import annotations

import contextlib
import gzip
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hwtune.adapters import following
from hwtune.adapters.following import follow
from hwtune.domain.collecting import EvidenceCollector
from hwtune.domain.errors import HwtuneError
from hwtune.domain.following import Until, quiet_needed_s
from hwtune.domain.markers import check
from hwtune.io.marker_sets import load_markers
from hwtune.io.tailing import TailedFile, TailedInput
from hwtune.report.markers import FactFeed

Opened = Callable[[Path], TailedFile]
ENGINE = "(EngineCore pid=9) INFO 11-30 06:51:47 [core.py:1] "
ERROR = "(EngineCore pid=9) ERROR 11-30 06:51:48 [core.py:2] "
PAGE = (
    ENGINE
    + "Setting attention block size to 832 tokens to ensure that attention page size is >= mamba page size."
)
STARTED = "(APIServer pid=7) INFO:     Application startup complete."
SERVED = '(APIServer pid=7) INFO:     127.0.0.1:5 - "POST /v1/completions HTTP/1.1" 200 OK'
STOP = "(APIServer pid=7) INFO:     Shutting down"
FAILED = f"{ERROR}Traceback (most recent call last):\n{ERROR}ValueError: page"


@pytest.fixture
def opened() -> Iterator[Callable[[Path], TailedFile]]:
    """Tails that are closed afterwards."""
    with contextlib.ExitStack() as stack:
        yield lambda path: stack.enter_context(contextlib.closing(TailedFile(str(path))))


def _lines(tail: TailedFile | TailedInput) -> list[tuple[int, str]]:
    blocks = tail.poll(0.0)
    return [
        (first + index, line)
        for first, block in blocks
        for index, line in enumerate(block.decode().split("\n"))
    ]


def test_only_whole_lines_are_given_and_numbers_go_on(tmp_path: Path, opened: Opened) -> None:
    path = tmp_path / "x.log"
    tail = opened(path)
    assert _lines(tail) == []  # not there yet
    path.write_text("one\ntw")
    assert _lines(tail) == [(1, "one")]
    with path.open("a") as file:
        file.write("o\nthree\nlast")
    assert _lines(tail) == [(2, "two"), (3, "three")]
    assert tail.flush() == [(4, b"last")]


def test_a_truncated_log_is_read_from_its_beginning(tmp_path: Path, opened: Opened) -> None:
    path = tmp_path / "x.log"
    path.write_text("a long line of the first start\n")
    tail = opened(path)
    assert len(_lines(tail)) == 1
    path.write_text("new\n")
    assert _lines(tail) == [(1, "new")]


def test_a_rotated_log_is_read_to_its_end_and_then_its_successor(
    tmp_path: Path, opened: Opened
) -> None:
    path = tmp_path / "x.log"
    path.write_text("one\n")
    tail = opened(path)
    _lines(tail)
    with path.open("a") as file:
        file.write("two\nunfinished")
    path.rename(tmp_path / "x.log.1")
    path.write_text("three\n")
    assert _lines(tail) == [(2, "two"), (3, "unfinished"), (1, "three")]


def test_between_the_steps_of_a_rotation_nothing_is_lost(tmp_path: Path, opened: Opened) -> None:
    path = tmp_path / "x.log"
    path.write_text("one\n")
    tail = opened(path)
    _lines(tail)
    path.rename(tmp_path / "x.log.1")
    assert _lines(tail) == []
    path.write_text("two\n")
    assert _lines(tail) == [(1, "two")]


def test_an_endless_line_is_cut(tmp_path: Path, opened: Opened) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"x" * (3 << 20) + b"\nnext\n")
    seen = [text for _, text in _lines(opened(path))]
    assert [len(text) for text in seen[:1]] == [1 << 20]
    assert seen[-1] == "next"


@pytest.mark.parametrize("data", [gzip.compress(b"x\n"), b"\0\1\2"])
def test_what_is_no_growing_text_is_refused(tmp_path: Path, opened: Opened, data: bytes) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(data)
    with pytest.raises(HwtuneError, match=r"x\.log"):
        opened(path).poll(0.0)
    with pytest.raises(HwtuneError, match="cannot read"):
        opened(tmp_path).poll(0.0)


def test_a_pipe_ends_when_its_writer_does(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        tail = TailedInput()
        os.write(writing, b"one\ntwo")
        assert (_lines(tail), tail.ended) == ([(1, "one")], False)
        os.close(writing)
        assert (_lines(tail), tail.ended) == ([], True)
        assert tail.flush() == [(2, b"two")]


def _wait(until: Until, *lines: str) -> float | None:
    collector = EvidenceCollector(load_markers())
    collector.feed("x.log", enumerate("\n".join(lines).split("\n"), start=1))
    evidence = collector.evidence()
    return quiet_needed_s(until, evidence, check(evidence, None, require_kernel_hits=False))


@pytest.mark.parametrize(
    ("until", "lines", "over"),
    [
        ("startup", [PAGE], False),
        ("startup", [PAGE, STARTED], True),
        ("startup", [PAGE, FAILED], True),
        ("expected", [PAGE, STARTED], True),
        ("stopped", [PAGE, STARTED, SERVED], False),
        ("stopped", [PAGE, STARTED, STOP], True),
        ("stopped", [PAGE, STARTED, FAILED], True),
        ("expected", [PAGE, STARTED, FAILED], True),
    ],
)
def test_when_the_wait_is_over(until: Until, lines: list[str], over: bool) -> None:
    assert (_wait(until, *lines) is not None) is over


def test_expected_waits_for_what_is_skipped_so_far() -> None:
    collector = EvidenceCollector(load_markers())
    collector.feed("x.log", enumerate([PAGE, STARTED], start=1))
    evidence = collector.evidence()
    report = check(evidence, None, require_kernel_hits=False, facts={"attention_backend": "X"})
    assert quiet_needed_s("expected", evidence, report) is None
    assert quiet_needed_s("startup", evidence, report) is not None


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "POLL_S", 0.01)


@pytest.mark.usefixtures("impatient")
def test_a_log_is_followed_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "server.log"

    def write() -> None:
        for text in (f"{PAGE}\n", STARTED[:20], f"{STARTED[20:]}\n"):
            with path.open("a") as file:
                file.write(text)
            time.sleep(0.03)

    collector = EvidenceCollector(load_markers())
    writer = threading.Thread(target=write)
    writer.start()

    def started() -> float | None:
        return 0.0 if collector.evidence().value("startup_complete") is True else None

    why = follow([str(path)], collector, started, timeout_s=20.0)
    writer.join()
    found = collector.evidence()
    assert (why, found.value("attention_block_size")) == ("nothing more to wait for", 832)
    (place,) = found.places("startup_complete")
    assert (place.file, place.line) == (str(path), 2)


@pytest.mark.usefixtures("impatient")
def test_a_wait_has_an_end(tmp_path: Path) -> None:
    collector = EvidenceCollector(load_markers())
    why = follow([str(tmp_path / "never.log")], collector, lambda: None, timeout_s=0.0)
    assert why == "0 s are over"


def test_facts_are_shown_once_and_again_when_they_change() -> None:
    collector, feed = EvidenceCollector(load_markers()), FactFeed()
    reader = collector.open("x.log")
    shown = []
    for number, line in enumerate([PAGE, PAGE.replace("832", "896"), *FAILED.split("\n")], start=1):
        collector.take(reader, reader.read_all([(number, line)]))
        shown += feed.new_lines(collector.evidence())
    assert [line.split("  (")[0] for line in shown] == [
        "attention_block_size 832",
        "attention_block_size 896",
        "failure: ValueError: page",
    ]


def test_a_failure_that_is_taken_back_hides_no_later_one() -> None:
    engine = "(EngineCore pid=2) ERROR 11-30 06:51:48 [core.py:2] "
    collector, feed = EvidenceCollector(load_markers()), FactFeed()
    reader = collector.open("x.log")

    def read(*lines: str) -> list[str]:
        numbered = ((len(line), line) for line in lines)
        collector.take(reader, reader.read_all(numbered))
        return [line for line in feed.new_lines(collector.evidence()) if "failure" in line]

    assert len(read(f"{engine}ValueError: taken for want of better")) == 1
    (shown,) = read("INFO:     Application startup complete.", *FAILED.split("\n"))
    assert "ValueError: page" in shown
