"""Which lines can matter at all, decided without reading them.

Almost every line of a long log is of a kind already known to be dull: the same logging call, the
same first words. ``dull`` holds what identifies such a line: the eight bytes before the header's
``] ``, which must hold ``.py:`` so that it really is a header's end, and the first twelve of the
message. A message whose start agrees with the start of no marker can match none, whatever
follows. All other lines are searched for the markers' literal texts.
"""

from __future__ import annotations

import json
import re

from hwtune.domain.marker_set import Marker

HEADER_END = b"] "
BEFORE, AFTER = 8, 14
"""Bytes of the key before and after the position of ``] ``."""
_START_BYTES = AFTER - len(HEADER_END)
_MAX_DULL = 50_000
_TRACEBACK = "Traceback (most recent call last):"


class LineFilter:
    """Decides per line; grows ``dull`` as it learns."""

    def __init__(self, markers: tuple[Marker, ...]) -> None:
        starts = {start for marker in markers for start in marker.starts} | {_TRACEBACK}
        texts = {text for marker in markers for text in marker.contains} | {_TRACEBACK, "hwtune["}
        self._starts = tuple({start.encode()[:_START_BYTES] for start in starts})
        forms = {form for text in texts for form in _forms(text)}
        self._texts = re.compile(b"|".join(re.escape(form) for form in sorted(forms)))
        self.dull: set[bytes] = set()

    def matters(self, raw: bytes, key: bytes) -> bool:
        """Whether the line must be read; a line whose ``key`` is in ``dull`` need not be asked.

        Args:
            raw: the whole line.
            key: its bytes around the first ``] ``, or nothing when it has none.
        """
        if b".py:" in key[:BEFORE]:
            start = key[BEFORE + len(HEADER_END) :]
            if not self._may_start(start) and b"hwtune[" not in raw:
                if len(self.dull) < _MAX_DULL and not start.startswith(b"hwtune"):
                    self.dull.add(key)
                return False
        return self._texts.search(raw) is not None

    def _may_start(self, start: bytes) -> bool:
        """Leading blanks may belong to a marker that ignores them."""
        return (
            start.startswith(self._starts)
            or any(known.startswith(start) for known in self._starts)
            or start[:1] in (b" ", b"\t", b"")
        )


def _forms(text: str) -> set[bytes]:
    """The text as it stands in a file: plain, and inside a JSON string of either make."""
    plain = json.dumps(text, ensure_ascii=False)[1:-1]
    return {text.encode(), plain.encode(), json.dumps(text)[1:-1].encode()}
