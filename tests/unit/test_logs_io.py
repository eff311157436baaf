"""Files in, lines out; bad files give one clear line."""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path

import pytest

from hwtune.domain.errors import InputError
from hwtune.io.logs import read_log


def _write(tmp_path: Path, data: bytes) -> str:
    path = tmp_path / "x.log"
    path.write_bytes(data)
    return str(path)


def test_lines_are_numbered_from_one(tmp_path: Path) -> None:
    assert list(read_log(_write(tmp_path, b"a\n\nb"))) == [(1, "a"), (2, ""), (3, "b")]


def test_pieces_of_a_progress_bar_share_a_number(tmp_path: Path) -> None:
    lines = list(read_log(_write(tmp_path, b"10%\r100%\rINFO\r\nnext\n")))
    assert lines == [(1, "10%\r"), (1, "100%\r"), (1, "INFO\r"), (2, "next")]


def test_gzip_is_recognised_by_content(tmp_path: Path) -> None:
    data = gzip.compress(b"one\n") + gzip.compress(b"two\n")
    assert [text for _, text in read_log(_write(tmp_path, data))] == ["one", "two"]


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BufferedReader(io.BytesIO(b"one\n"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(raw))
    assert list(read_log("-")) == [(1, "one")]


def test_what_is_not_utf_8_is_replaced(tmp_path: Path) -> None:
    assert list(read_log(_write(tmp_path, b"a\xffb\n"))) == [(1, "a\ufffdb")]


def test_an_endless_line_is_cut(tmp_path: Path) -> None:
    lines = list(read_log(_write(tmp_path, b"x" * 3_000_000 + b"\nnext\n")))
    assert [number for number, _ in lines] == [1, 2]
    assert len(lines[0][1]) < 1_000_000
    assert lines[1][1] == "next"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"\x7fELF\0\0\0", "not a text log"),
        ("INFO hello\n".encode("utf-16"), "not a text log"),
        (gzip.compress(b"some text\n" * 1000)[:-20], "cut off"),
        (gzip.compress(b"some text\n")[:10] + b"garbage garbage garbage", "damaged gzip"),
    ],
    ids=["empty", "binary", "utf-16", "truncated gzip", "damaged gzip"],
)
def test_unreadable_logs(tmp_path: Path, data: bytes, message: str) -> None:
    path = _write(tmp_path, data)
    with pytest.raises(InputError, match=message) as caught:
        list(read_log(path))
    assert path in str(caught.value)


@pytest.mark.parametrize("name", ["missing.log", "."])
def test_missing_files_and_directories(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="cannot read the log"):
        list(read_log(str(tmp_path / name)))
