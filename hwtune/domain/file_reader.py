"""The lines of one file that may state something, parsed; the others are passed over unread."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Protocol

from hwtune.domain.line_filter import (
    ACCESS,
    AFTER,
    BEFORE,
    HEADER_END,
    REQUEST,
    SOURCE,
    LineFilter,
)
from hwtune.domain.line_prefixes import LearntPrefixes
from hwtune.domain.log_lines import LogLine, parse_line, parse_lines, split_progress

_TEACHING_LINES = 64
_MAX_LINE_BYTES = 1 << 18
"""vLLM's longest line (its whole configuration) is some 20 kB; what lies beyond is cut."""
_TIME = re.compile(rb"\d\d-\d\d[ T]\d\d:\d\d:\d\d")
_TIME_WITHIN = 300
_TIME_CHARS = 14
_DIGITS = bytes.maketrans(b"0123456789", b"0000000000")
_FEW_LINES = 4
_FRAME = re.compile(rb"[`~]{3,20}\w{0,20}|(?:</?[a-z]{1,10}>){1,8}|[\[\](){},]{1,8}")
"""What a paste begins and ends with."""


class Audience(Protocol):
    """Who takes the lines, and says which lines it wants."""

    @property
    def line_filter(self) -> LineFilter:
        """Which lines can state anything."""
        ...

    def busy(self, file: str) -> bool:
        """Whether every line of the file counts (a traceback is open)."""
        ...

    def glance(self, line: LogLine) -> None:
        """Shows one of the first lines, whether or not it states anything."""
        ...


class FileReader:
    """Reads one file, in one go or piece by piece."""

    def __init__(self, file: str, audience: Audience) -> None:
        self.file = file
        self.clock = ""
        """``MM-DD hh:mm:ss`` of the line just given, or of the last one before it that has a time."""
        self._audience = audience
        self._prefixes = LearntPrefixes()
        self._previous: LogLine | None = None
        self._before: bytes | None = None
        self._last: tuple[int, str] | None = None
        self._skip = 0

    def read_all(self, lines: Iterable[tuple[int, str]]) -> Iterator[LogLine]:
        """Each of the lines ``(number, text)``."""
        for number, text in lines:
            if not _says_nothing(text.encode("utf-8", errors="replace")):
                self._last = (number, text)
            yield from self._parsed(number, text)

    def taught(self, blocks: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        """The same blocks, after a look at the first, so that prefix and clock are known."""
        rest = iter(blocks)
        block = next(rest, None)
        if block is None:
            return rest
        if block[0] == 1:
            self._teach(block[1].split(b"\n", _TEACHING_LINES)[:_TEACHING_LINES])
        return itertools.chain([block], rest)

    def read_blocks(self, blocks: Iterable[tuple[int, bytes]]) -> Iterator[LogLine]:
        """What may state something in blocks ``(number of the first line, bytes of whole lines)``."""
        for first, block in blocks:
            lines = block.split(b"\n")
            yield from self._wanted(first, lines, quotes=b"hwtune[" in block)
            last = len(lines) - 1
            while last >= 0 and _says_nothing(lines[last]):
                last -= 1
            if last >= 0:
                self._last = (first + last, _text(lines[last]))

    def last_line(self) -> LogLine | None:
        """The last line that is not blank."""
        if self._last is None:
            return None
        number, text = self._last
        *_, piece = split_progress(text)
        return parse_line(self.file, number, piece, prefixes=self._prefixes)

    def end_clock(self) -> str:
        """Time of the last line, or of the last one read that has a time."""
        last = self.last_line()
        return max(self.clock, "" if last is None else _clock(last.time))

    def _teach(self, lines: list[bytes]) -> None:
        """Headers show the collector's prefix and the clock, also where they state nothing."""
        self._skip = _end_of_prefix(lines)
        self._prefixes.teaching = True
        for number, raw in enumerate(lines, start=1):
            line = parse_line(self.file, number, _text(raw), prefixes=self._prefixes)
            self._audience.glance(line)
            self.clock = self.clock or _clock(line.time)
        self._prefixes.teaching = False

    def _wanted(self, first: int, lines: list[bytes], *, quotes: bool) -> Iterator[LogLine]:
        """Lines of known dull kinds cost one search, one slice and one look-up each."""
        audience = self._audience
        line_filter, busy = audience.line_filter, audience.busy(self.file)
        skip = self._skip
        keys = [raw[(end := raw.find(HEADER_END, skip)) - BEFORE : end + AFTER] for raw in lines]
        every = range(len(lines))
        candidates: Iterable[int] = every
        if not busy and not quotes:
            dull = line_filter.dull
            asked = not line_filter.skips_requests
            candidates = [
                index
                for index, key in enumerate(keys)
                if key not in dull
                and not (ACCESS in (raw := lines[index]) and _is_request(raw, asked=asked))
            ]
        todo = iter(candidates)
        while (index := next(todo, None)) is not None:
            raw = lines[index]
            if not busy and self._is_dull(line_filter, raw, keys[index], quotes=quotes):
                continue
            if index:
                self._previous = None
                self._before = lines[index - 1]
            for piece in split_progress(_text(raw)):
                yield from self._parsed(first + index, piece)
            self._before = raw
            line_filter, busy = audience.line_filter, audience.busy(self.file)
            if busy and candidates is not every:
                candidates = every
                todo = iter(range(index + 1, len(lines)))

    def _is_dull(self, line_filter: LineFilter, raw: bytes, key: bytes, *, quotes: bool) -> bool:
        """Whether a line states nothing, by its ``key`` around the first ``] `` or beyond."""
        if key in line_filter.dull and not (quotes and b"hwtune[" in raw):
            return True
        if SOURCE not in key[:BEFORE]:
            if ACCESS in raw and _is_request(raw, asked=not line_filter.skips_requests):
                return True
            source = raw.find(SOURCE)
            end = raw.find(HEADER_END, source) if source >= 0 else -1
            key = raw[end - BEFORE : end + AFTER] if end >= BEFORE else b""
            if key in line_filter.dull and b"hwtune[" not in raw:
                return True
        return not line_filter.matters(raw, key)

    def _parsed(self, number: int, text: str) -> Iterator[LogLine]:
        if self._previous is None and self._before is not None:
            before = _text(self._before)
            self._previous = parse_line(self.file, number - 1, before, prefixes=self._prefixes)
        lines = parse_lines(self.file, number, text, self._previous, self._prefixes)
        self.clock = _clock(lines[0].time) or self._clock_before() or self.clock
        self._previous = lines[0]
        yield from lines

    def _clock_before(self) -> str:
        found = _TIME.search(self._before[:_TIME_WITHIN]) if self._before else None
        return found[0].decode().replace("T", " ") if found else ""


def _end_of_prefix(lines: list[bytes]) -> int:
    """How far a prefix reaches that ends in ``] `` and stands before each of the first lines.

    Only its digits may change. With it skipped, the next ``] `` is that of vLLM's header.
    """
    shapes = [raw.translate(_DIGITS) for raw in lines if raw.strip()]
    if len(shapes) < _FEW_LINES:
        return 0
    first, last = min(shapes), max(shapes)
    same = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)
    return first.rfind(HEADER_END, 0, same) + len(HEADER_END) if HEADER_END in first[:same] else 0


def _is_request(raw: bytes, *, asked: bool) -> bool:
    """Whether a line with ACCESS is uvicorn's, and of a request that nobody asks for any more."""
    return (not asked or REQUEST not in raw) and SOURCE not in raw and b"\r" not in raw


def _says_nothing(raw: bytes) -> bool:
    text = raw.strip()
    return not text or (len(text) < 100 and _FRAME.fullmatch(text) is not None)


def _clock(time: str | None) -> str:
    """The last part of a time that has no year everywhere; empty for other kinds of time."""
    text = (time or "")[:26].split(".")[0].rstrip("Z").replace("T", " ")[-_TIME_CHARS:]
    return text if _TIME.fullmatch(text.encode()) else ""


def _text(raw: bytes) -> str:
    return raw[:_MAX_LINE_BYTES].decode("utf-8", errors="replace")
