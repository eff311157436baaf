"""Text from outside (a server, a log, a file's name) made harmless for a terminal and for files."""

from __future__ import annotations

import re

_CONTROL = r"\x00-\x08\x0b-\x1f\x7f-\x9f"
_INVISIBLE = r"\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
"""Other line ends, marks that turn the direction of writing, halves of characters."""
_HARMFUL = re.compile(f"[{_CONTROL}{_INVISIBLE}]")
_NOT_ONE_LINE = re.compile(f"[{_CONTROL}\t\n{_INVISIBLE}]")


def harmless(text: str) -> str:
    """Control characters as escapes, so that nothing steers the terminal; lines and tabs stay.

    The escapes are those of JSON where JSON leaves a character as it is.
    """
    return _HARMFUL.sub(_escape, text)


def one_line(text: str) -> str:
    """The same with line ends and tabs as escapes too, so that nothing passes for another line."""
    return _NOT_ONE_LINE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    return ascii(character)[1:-1] if character < "\x7f" else f"\\u{ord(character):04x}"
