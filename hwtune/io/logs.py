"""Log files, standard input and gzip -> blocks of whole lines, in constant memory."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Iterator
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import IO, BinaryIO, cast

from hwtune.domain.errors import InputError

STDIN = "-"
_CHUNK_BYTES = 1 << 17
"""Blocks that stay in the processor's cache are read faster than large ones."""
_MAX_LINE_BYTES = 1 << 20
GZIP_MAGIC = b"\x1f\x8b"
_PROBE_BYTES = 8192
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
"""What PowerShell's ``>`` begins a file with."""


def read_log(name: str) -> Iterator[tuple[int, bytes]]:
    """A log as blocks ``(number of the first line, bytes of whole lines)``, newlines inside.

    ``-`` is standard input. A line of more than 1 MiB is cut and its rest left out.

    Raises:
        InputError: missing, a directory, unreadable, empty, or not text.
    """
    if name == STDIN:
        yield from _blocks(_buffered(sys.stdin.buffer), "standard input")
        return
    try:
        with Path(name).open("rb") as file:
            yield from _blocks(file, name)
    except OSError as error:
        message = f"{name}: cannot read the log: {error.strerror or error}"
        raise InputError(message) from None


def _buffered(file: BinaryIO) -> BufferedReader:
    return file if isinstance(file, BufferedReader) else BufferedReader(cast("RawIOBase", file))


def _blocks(file: BufferedReader, name: str) -> Iterator[tuple[int, bytes]]:
    number, empty = 1, True
    for block in _whole_lines(_chunks(file, name)):
        empty = False
        yield number, block
        number += block.count(b"\n") + 1
    if empty:
        message = f"{name}: the log is empty; nothing can be said about the server"
        raise InputError(message)


def _chunks(file: BufferedReader, name: str) -> Iterator[bytes]:
    source: IO[bytes] = file
    if file.peek(2).startswith(GZIP_MAGIC):
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
        if chunk.startswith(_UTF16):
            message = f"{name}: the log is in UTF-16; write it anew with iconv -f UTF-16 -t UTF-8"
        raise InputError(message)


def _whole_lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Regroups chunks so that each ends where a line ends; the last newline is left out."""
    rest, skipping = b"", False
    for chunk in chunks:
        if skipping:
            _, newline, chunk = chunk.partition(b"\n")
            skipping = not newline
        head, newline, tail = chunk.rpartition(b"\n")
        if newline:
            yield rest + head
            rest = tail
        else:
            rest += tail
        if len(rest) > _MAX_LINE_BYTES:
            yield rest[:_MAX_LINE_BYTES]
            rest, skipping = b"", True
    if rest:
        yield rest
