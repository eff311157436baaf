"""Many literal texts -> one regular expression that finds any of them fast.

Python's ``re`` tries the branches of an alternation one after the other, so texts that begin alike
are gathered into a tree first: a few branches per place instead of hundreds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_Tree = dict[bytes, "_Tree"]
_END = b""


def any_of(texts: Iterable[bytes]) -> re.Pattern[bytes]:
    """Matches where one of the texts starts; the text may be longer than the match.

    A text that begins with another one is covered by it. No text at all matches nowhere.
    """
    tree: _Tree = {}
    for text in sorted(set(texts)):
        if text:
            _add(tree, text)
    return re.compile(_pattern(tree) if tree else rb"(?!)")


def _add(tree: _Tree, text: bytes) -> None:
    for position in range(len(text)):
        if _END in tree:
            return  # a shorter text ends here and covers this one
        tree = tree.setdefault(text[position : position + 1], {})
    tree[_END] = {}


def _pattern(tree: _Tree) -> bytes:
    if _END in tree:
        return b""
    branches = [re.escape(char) + _pattern(rest) for char, rest in sorted(tree.items())]
    return branches[0] if len(branches) == 1 else b"(?:" + b"|".join(branches) + b")"
