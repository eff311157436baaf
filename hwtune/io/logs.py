"""Log files, standard input and gzip -> numbered lines, in constant memory."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO, cast

from hwtune.domain.errors import InputError
from hwtune.domain.log_lines import split_progress

STDIN = "-"
_CHUNK_BYTES = 1 << 20
_MAX_LINE_BYTES = 1 << 18
"""vLLM's longest line (its whole configuration) is some 20 kB; what lies beyond is cut."""
_GZIP_MAGIC = b"\x1f\x8b"
_PROBE_BYTES = 8192


def read_log(name: str) -> Iterator[tuple[int, str]]:
    """Lines of a log as ``(number from 1, text)``; pieces of a progress bar share a number.

    ``-`` is standard input. Bytes that are not UTF-8 become U+FFFD.

    Raises:
        InputError: missing, a directory, unreadable, empty, or not text.
    """
    if name == STDIN:
        yield from _lines(cast("BufferedReader", sys.stdin.buffer), "standard input")
        return
    try:
        with Path(name).open("rb") as file:
            yield from _lines(file, name)
    except OSError as error:
        message = f"{name}: cannot read the log: {error.strerror or error}"
        raise InputError(message) from None


def _lines(file: BufferedReader, name: str) -> Iterator[tuple[int, str]]:
    chunks = _chunks(file, name)
    empty = True
    for number, raw in enumerate(_split(chunks), start=1):
        empty = False
        text = raw.decode("utf-8", errors="replace")
        if "\r" not in text[:-1]:
            yield number, text
            continue
        for piece in split_progress(text[:-1]):
            yield number, piece + ("\r" if text.endswith("\r") else "")
    if empty:
        message = f"{name}: the log is empty; nothing can be said about the server"
        raise InputError(message)


def _chunks(file: BufferedReader, name: str) -> Iterator[bytes]:
    source: IO[bytes] = file
    if file.peek(2).startswith(_GZIP_MAGIC):
        source = cast("IO[bytes]", gzip.GzipFile(fileobj=file))
    try:
        chunk = source.read(_CHUNK_BYTES)
        _refuse_binary(chunk, name)
        while chunk:
            yield chunk
            chunk = source.read(_CHUNK_BYTES)
    except EOFError:
        message = f"{name}: the gzip file is cut off before its end; copy it again"
        raise InputError(message) from None
    except (zlib.error, gzip.BadGzipFile) as error:
        message = f"{name}: damaged gzip file: {error}"
        raise InputError(message) from None


def _refuse_binary(chunk: bytes, name: str) -> None:
    """NUL bytes do not occur in logs; a text in UTF-16 is full of them."""
    if b"\0" in chunk[:_PROBE_BYTES]:
        message = f"{name}: not a text log (it holds NUL bytes)"
        raise InputError(message)


def _split(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Splits at LF only; a line beyond the limit is cut and its rest skipped."""
    rest, skipping = b"", False
    for chunk in chunks:
        parts = (rest + chunk).split(b"\n") if not skipping else chunk.split(b"\n")
        if skipping:
            if len(parts) == 1:
                continue
            parts, skipping = parts[1:], False
        rest = parts.pop()
        yield from (part[:_MAX_LINE_BYTES] for part in parts)
        if len(rest) > _MAX_LINE_BYTES:
            yield rest[:_MAX_LINE_BYTES]
            rest, skipping = b"", True
    if rest:
        yield rest
