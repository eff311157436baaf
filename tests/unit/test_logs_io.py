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


def _read(name: str) -> list[tuple[int, bytes]]:
    return [
        (first + index, line)
        for first, block in read_log(name)
        for index, line in enumerate(block.split(b"\n"))
    ]


def test_lines_are_numbered_from_one(tmp_path: Path) -> None:
    assert _read(_write(tmp_path, b"a\n\nb")) == [(1, b"a"), (2, b""), (3, b"b")]


def test_numbers_go_on_over_blocks(tmp_path: Path) -> None:
    lines = [b"%d %s" % (number, b"x" * (number % 900)) for number in range(1, 9000)]
    path = _write(tmp_path, b"\n".join(lines) + b"\n")
    assert len(list(read_log(path))) > 2
    assert _read(path) == list(enumerate(lines, start=1))


def test_gzip_is_recognised_by_content(tmp_path: Path) -> None:
    data = gzip.compress(b"one\n") + gzip.compress(b"two\n")
    assert _read(_write(tmp_path, data)) == [(1, b"one"), (2, b"two")]


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\n")))
    assert _read("-") == [(1, b"one")]


def test_an_endless_line_is_cut(tmp_path: Path) -> None:
    lines = _read(_write(tmp_path, b"x" * 5_000_000 + b"\nnext\n"))
    assert [number for number, _ in lines] == [1, 2]
    assert len(lines[0][1]) <= 2 << 20
    assert lines[1][1] == b"next"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"\x7fELF\0\0\0", "not a text log"),
        ("INFO hello\n".encode("utf-16"), "in UTF-16; write it anew"),
        ("INFO hello\n".encode("utf-16-le"), "not a text log"),
        (gzip.compress(b"some text\n" * 1000)[:-20], "cut off"),
        (gzip.compress(b"some text\n")[:10] + b"garbage garbage garbage", "damaged gzip"),
    ],
    ids=["empty", "binary", "utf-16", "utf-16 without its mark", "truncated gzip", "damaged gzip"],
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
