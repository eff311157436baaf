"""The headers that loggers write: vLLM's of every version, vllm-ascend's, and usual formats."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_LEVEL = r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)"
_DAY = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d"
_SOURCE = r"(?P<source>[\w./*-]{1,160}:\d+)"
_VLLM = re.compile(
    # vLLM >= 0.7: INFO 06-01 10:00:00 [file.py:12] message; < 0.7: ... file.py:12] message
    _LEVEL + r" (?P<time>(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)? \[?" + _SOURCE + r"\] ?"
)
_OTHERS = (
    # vllm-ascend and libraries: [2026-03-03 12:20:54] INFO file.py:69: message
    re.compile(rf"\[(?P<time>{_DAY})[.,]?\d*\] {_LEVEL} {_SOURCE}: ?"),
    # [2026-03-03 12:20:54,123] [INFO] [file.py:69] message
    re.compile(rf"\[(?P<time>{_DAY})[.,]?\d*\] \[{_LEVEL}\] (?:\[{_SOURCE}\] )?"),
    # [2026-04-20 10:56:24.647187][UC][E] message
    re.compile(rf"\[(?P<time>{_DAY})[.,]?\d*\]\[\w{{1,20}}\]\[(?P<letter>[DIWEC])\] "),
    # logging's default with a configured format: 2026-01-01 10:00:00,123 - vllm.x - INFO - message,
    # and others that name the source after the level: 2026-01-01 10:00:00 | INFO | a.b:f:12 - message.
    # uvicorn's "INFO:     text" behind a clock is none: its level is followed by blanks.
    re.compile(
        rf"(?P<time>{_DAY})(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?[ |:-]{{1,5}}"
        r"(?:(?P<source>[A-Za-z_][\w./:-]{0,160}?)(?: [-|] |:)|(?P<dotted>[A-Za-z_]\w*[./][\w./:-]{1,160}) )?"
        + _LEVEL
        + r"(?: {1,6}- | {0,6}\| ?|:(?! {2}) ?| )"
        r"(?:(?P<after>[A-Za-z_][\w./-]{0,160}:(?:[\w<>]{1,80}:)?\d+)(?:: | - | \| | ))?"
    ),
    # vLLM's with the source retold: INFO 08-22 03:02:11 file.py: message
    re.compile(
        _LEVEL
        + r" (?P<time>(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)? (?P<source>[\w./-]{1,160}\.py(?::\d+)?):? "
    ),
    # vLLM's without its time, as people post it: INFO [file.py:12] message
    re.compile(rf"{_LEVEL} \[{_SOURCE}\] "),
    # logging.basicConfig(): INFO:vllm.core:message
    re.compile(_LEVEL + r":(?P<source>[A-Za-z_][\w.]{0,120}):"),
)
_BEHIND_ANYTHING = (_VLLM, _OTHERS[0], _OTHERS[2])
"""Headers that are not mistaken for text, so that anything may stand before them."""
_LETTERS = {"D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "C": "CRITICAL"}
_WITHIN = 400
"""A header that begins later than this is part of a message, not of a prefix."""
_VLLM_BEHIND_CLOCK = re.compile(r"\d\d-\d\d \d\d:\d\d:\d\d")
_QUOTING = re.compile(r"""["'`{<\\=]""")
ANY = re.compile("|".join(re.sub(r"\?P<\w+>", "?:", p.pattern) for p in (_VLLM, *_OTHERS)))
"""Matches where any header starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A header found in a line."""

    start: int
    end: int
    time: str | None
    level: str
    source: str | None


def find_header(
    text: str, *, without: re.Pattern[str], trusted: Callable[[str], bool] | None = None
) -> Header | None:
    """The header at the start, or behind a prefix of unknown make that quotes nothing.

    Args:
        text: the line without colours, known prefixes and process names.
        without: what may stand in the prefix and is not looked at (process names).
        trusted: asked whether a prefix with quotation marks stands before every line of the file.
    """
    match = _VLLM.match(text)
    if match is None:
        match = next((m for m in (pattern.match(text) for pattern in _OTHERS) if m), None)
        if match is not None and _VLLM_BEHIND_CLOCK.match(text, match.end()):
            # The clock of a collector stands before vLLM's own header.
            match = _VLLM.match(text, match.start("level")) or match
    if match is None:
        found = (pattern.search(text, 0, _WITHIN) for pattern in _BEHIND_ANYTHING)
        match = next((m for m in found if m), None)
        prefix = "" if match is None else text[: match.start()]
        if _QUOTING.search(without.sub("", prefix)) and not (trusted and trusted(prefix)):
            return None
    return None if match is None else _header(match)


def _header(match: re.Match[str]) -> Header:
    groups = match.groupdict()
    return Header(
        start=match.start(),
        end=match.end(),
        time=groups.get("time"),
        level=groups.get("level") or _LETTERS.get(groups.get("letter") or "", "INFO"),
        source=groups.get("source") or groups.get("dotted") or groups.get("after"),
    )
