"""Which lines can matter at all, decided without reading them.

Almost every line of a long log is of a kind already known to be dull: the same logging call, the
same first words. ``dull`` holds what identifies such a line: the eight bytes before the header's
``] ``, which must hold ``.py:`` so that it really is a header's end, and the first twelve of the
message. A message whose start agrees with the start of no marker can match none, whatever
follows. One that agrees with a few is searched for their literal texts, all other lines for the
texts of every marker.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable

from hwtune.domain.literals import any_of
from hwtune.domain.marker_set import Marker

SOURCE, HEADER_END = b".py:", b"] "
BEFORE, AFTER = 8, 14
"""Bytes of the key before and after the position of ``] ``."""
ACCESS, REQUEST = b" HTTP/1.", b"POST /"
"""uvicorn's line per request: only that one was answered counts, and only once."""
_START_BYTES = AFTER - len(HEADER_END)
_MAX_KNOWN = 50_000
_FEW = 12
_ERROR = b"ERROR "
"""Of an error any words may matter (a traceback, an exception), so none is dull."""
_SEVERAL = re.compile(rb"\.py:\d+\] .*?\.py:\d+\] ")
"""Two headers: one line that holds several, of which the first says nothing of the others."""
_ALWAYS = ("Traceback (most recent call last)", "hwtune[")
_IN_FAILURES = (
    'File "',
    "Error: ",
    "Exception: ",
    "Value error, ",
    "Assertion failed, ",
    "Exception in ASGI",
)
"""What else matters in errors and in lines without a header."""
_LEVELS = (b"DEBUG ", b"INFO ", b"WARNING ", b"ERROR ", b"CRITICAL ")
_PREFIX = (b" ", b"\t", b"(", b"[")
"""Leading blanks may belong to a marker that ignores them, and a collector's header may stand
before vLLM's own."""
Search = Callable[[bytes], object]


class LineFilter:
    """Decides per line; grows ``dull`` as it learns."""

    def __init__(self, markers: tuple[Marker, ...]) -> None:
        self._markers = [
            (tuple(start.encode()[:_START_BYTES] for start in marker.starts), marker)
            for marker in markers
            if not marker.plain
        ]
        self._search: Search = _searcher(markers, also=_IN_FAILURES)
        self._by_start: dict[bytes, Search | None] = {}
        self.dull: set[bytes] = set()
        self.skips_requests = not any(
            REQUEST.decode() in text for marker in markers for text in marker.contains
        )
        """Whether uvicorn's lines per request are dull, all of them."""

    def matters(self, raw: bytes, key: bytes) -> bool:
        """Whether the line must be read; a line whose ``key`` is in ``dull`` need not be asked.

        Args:
            raw: the whole line.
            key: its bytes around the end of its header, or nothing when it has none.
        """
        if SOURCE in key[:BEFORE]:
            start = key[BEFORE + len(HEADER_END) :]
            search = self._of_start(start)
            if _ERROR in raw or (raw.count(SOURCE) > 1 and _SEVERAL.search(raw)):
                return bool(self._search(raw))
            if search is None:
                if b"hwtune[" in raw:
                    return True
                if len(self.dull) < _MAX_KNOWN and not start.startswith(b"hwtune"):
                    self.dull.add(key)
                return False
            return bool(search(raw))
        if ACCESS in raw and b"\r" not in raw:
            return not self.skips_requests and REQUEST in raw
        return bool(self._search(raw))

    def _of_start(self, start: bytes) -> Search | None:
        """What to search a message for that starts so; None when no marker does."""
        if start in self._by_start:
            return self._by_start[start]
        search: Search | None = self._search
        if start and not start.startswith((*_PREFIX, *_LEVELS)):
            fitting = tuple(
                marker
                for starts, marker in self._markers
                if start.startswith(starts) or any(known.startswith(start) for known in starts)
            )
            known = fitting or start.startswith(b"hwtune") or b"Traceback".startswith(start[:9])
            search = _searcher(fitting) if known else None
        if len(self._by_start) < _MAX_KNOWN:
            self._by_start[start] = search
        return search


def _searcher(markers: tuple[Marker, ...], also: tuple[str, ...] = ()) -> Search:
    texts = {text for marker in markers for text in marker.contains} | {*_ALWAYS, *also}
    forms = sorted({form for text in texts for form in _forms(text)})
    return any_of(forms).search if len(forms) > _FEW else _finder(forms)


def _finder(forms: list[bytes]) -> Search:
    """For a few texts the plain search is faster than a regular expression."""

    def find(raw: bytes) -> bool:
        for form in forms:  # noqa: SIM110 - a generator costs as much as the searches
            if form in raw:
                return True
        return False

    return find


def _forms(text: str) -> set[bytes]:
    """The text as it stands in a file: plain, inside a JSON string of either make, or in HTML."""
    plain = json.dumps(text, ensure_ascii=False)[1:-1]
    escaped = html.escape(text)
    forms = (text, plain, json.dumps(text)[1:-1], html.escape(text, quote=False), escaped)
    return {form.encode() for form in (*forms, escaped.replace("&#x27;", "&#39;"))}
