"""Reading an HTTP/1.1 response whose pieces carry their arrival times."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_HEX = re.compile(rb"[0-9A-Fa-f]{1,16}")

Reads = Sequence[tuple[float, bytes]]


class MalformedResponseError(Exception):
    """The bytes are not an HTTP/1.1 response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Status line and headers."""

    status: int
    chunked: bool
    content_length: int | None
    size: int
    """Bytes up to and including the empty line."""


def parse_head(data: bytes) -> Head | None:
    """None while the headers are not complete.

    Raises:
        MalformedResponseError: no HTTP/1.x status line, or a length that is no number.
    """
    end = data.find(b"\r\n\r\n")
    if end < 0:
        if data and not data.startswith(b"HTTP/1."[: len(data)]):
            message = f"not an HTTP response: {data[:40]!r}"
            raise MalformedResponseError(message)
        return None
    lines = data[:end].decode("latin-1").split("\r\n")
    headers = {
        name.strip().lower(): value.strip().lower()
        for name, _, value in (line.partition(":") for line in lines[1:])
    }
    length = headers.get("content-length")
    try:
        status = int(lines[0].split()[1])
        content_length = None if length is None else int(length)
    except (IndexError, ValueError):
        message = f"not an HTTP response: {lines[0][:60]!r}"
        raise MalformedResponseError(message) from None
    chunked = "chunked" in headers.get("transfer-encoding", "")
    return Head(status=status, chunked=chunked, content_length=content_length, size=end + 4)


def response_is_complete(reads: Reads) -> bool:
    """Whether the response has ended by its own framing. Malformed counts as ended."""
    data = b"".join(piece for _, piece in reads)
    try:
        head = parse_head(data)
        if head is None:
            return False
        if head.chunked:
            return _chunks_end(data, head.size)
    except MalformedResponseError:
        return True
    return head.content_length is not None and len(data) - head.size >= head.content_length


def _chunks_end(data: bytes, position: int) -> bool:
    """Whether the zero chunk has come."""
    while True:
        line_end = data.find(b"\r\n", position)
        if line_end < 0:
            return False
        size = _chunk_size(data[position:line_end])
        position = line_end + 2 + size + 2
        if position > len(data):
            return False
        if size == 0:
            return True


def _chunk_size(line: bytes) -> int:
    digits = line.split(b";", 1)[0].strip()
    # int() takes a sign too, and a negative size would be walked for ever.
    if not _HEX.fullmatch(digits):
        message = f"not a chunk size: {line[:20]!r}"
        raise MalformedResponseError(message)
    return int(digits, 16)


def body_pieces(reads: Reads, head: Head) -> Iterator[tuple[float, bytes]]:
    """The body without its framing, in pieces, each with the time its last byte came."""
    skip = head.size
    pending = b""
    for time_s, piece in reads:
        if skip >= len(piece):
            skip -= len(piece)
            continue
        pending += piece[skip:]
        skip = 0
        if not head.chunked:
            yield time_s, pending
            pending = b""
            continue
        payload, pending = _take_chunks(pending)
        if payload:
            yield time_s, payload


def _take_chunks(data: bytes) -> tuple[bytes, bytes]:
    """Payload of every complete chunk at the start, and the rest."""
    payload: list[bytes] = []
    position = 0
    while (line_end := data.find(b"\r\n", position)) >= 0:
        size = _chunk_size(data[position:line_end])
        start = line_end + 2
        if start + size + 2 > len(data):
            break
        payload.append(data[start : start + size])
        position = start + size + 2
        if size == 0:
            break
    return b"".join(payload), data[position:]
