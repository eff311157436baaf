"""Standard output and standard error, so that nothing from outside steers the terminal.

What a server, a log or a file's name holds may stand anywhere in what is printed: in a table, an
error, click's own messages. So every text passes here, and nobody has to think of it.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

from hwtune.domain.plain_text import harmless


class HarmlessStream(io.TextIOWrapper):
    """Writes control characters as escapes, and halves of characters, which have no encoding."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        super().__init__(
            stream.buffer,
            encoding=stream.encoding,
            errors="backslashreplace",
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        self._stream = stream  # when nobody holds it, it closes what both write to

    def write(self, text: str) -> int:
        """Writes ``text``, made harmless; its length as it was given."""
        self.write_as_is(harmless(text))
        return len(text)

    def write_as_is(self, text: str) -> int:
        """Writes text that may colour itself: a log that is passed through."""
        return super().write(text)


def open_missing_streams() -> None:
    """Gives closed standard streams the null device, or a file opened later would get their number
    and what is printed."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def protect_streams() -> None:
    """From here on all that is printed is harmless. ``sys.__stderr__`` stays as it was."""
    sys.stdout, sys.stderr = _protected(sys.stdout), _protected(sys.stderr)


def _protected(stream: TextIO) -> TextIO:
    return HarmlessStream(stream) if isinstance(stream, io.TextIOWrapper) else stream
