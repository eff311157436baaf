"""Markers as data: which message states which fact."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from hwtune.domain.evidence import Value
from hwtune.domain.log_lines import LogLine

MarkerKind = Literal["fact", "fatal", "fallback", "hwtune", "request error"]
ValueType = Literal["int", "float", "str", "bool", "list", "ints", "reasons"]
StartKind = Literal["early", "server", "engine"]
Merge = Literal["first", "last", "min", "max", "union"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """One kind of line."""

    id: str
    kind: MarkerKind
    begins: tuple[str, ...]
    """Literal texts one of which the message must start with; empty: ``pattern`` starts it."""
    starts: tuple[str, ...]
    """Literal texts one of which every matching message starts with."""
    contains: tuple[str, ...]
    """Literal texts one of which every matching line contains."""
    pattern: re.Pattern[str]
    """Searched in the message when ``begins`` is given, else matched at its start."""
    fact: str | None
    type: ValueType
    constant: Value | None
    """Value that the mere presence of the line states; None: the pattern's group ``value``."""
    rank: int
    bare: bool
    """Whether a line without logger header counts too (uvicorn, the C++ runtime)."""
    plain: bool
    """Whether only lines without logger header count: another program's, whatever they begin with."""
    echo: bool
    """Whether a fatal line only reports an end whose cause something else may have said."""
    once: bool
    """Whether later matches add nothing."""
    not_from: tuple[str, ...]
    """File names of logging calls that quote other people's text."""
    start: StartKind | None
    """What of a server's start the line begins: its first lines (of any process), the server
    process naming itself, or the engine."""
    meaning: str
    versions: str
    source: str
    examples: tuple[str, ...]
    counter_examples: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FactRule:
    """How several sightings of one fact become one value."""

    name: str
    title: str
    merge: Merge
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerSet:
    """All markers and the facts they state."""

    markers: tuple[Marker, ...]
    facts: Mapping[str, FactRule] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerMatch:
    """A marker that a line matched, with what the line states."""

    marker: Marker
    value: Value | None
    groups: Mapping[str, str]


_LIST_ITEM = re.compile(r"""['"]?([^'",\s\[\](){}]+(?: [^'",\s\[\](){}]+)*)['"]?""")
_REASON = re.compile(r"(?P<name>[A-Z][A-Z0-9_]{1,80}): ?\[(?P<why>[^\]]{1,400})\]")
_ONE_REASON = re.compile(
    r"(?P<name>[A-Z][A-Z0-9_]{1,80}) is not valid for this configuration\. Reason: (?P<why>.{1,400})"
)
_META = frozenset("\\.^$*+?{}[]|()")
_TRUE = {"true", "1", "yes", "on"}
_FALSE = {"false", "0", "no", "off"}


def match_line(line: LogLine, markers: tuple[Marker, ...]) -> Iterator[MarkerMatch]:
    """Markers that the line matches; a line may state several facts."""
    for marker in markers:
        match = _match(line, marker)
        if match is not None:
            groups = {k: v for k, v in match.groupdict().items() if v is not None}
            value = _value(marker, groups)
            if marker.fact is None or value is not None:
                yield MarkerMatch(marker=marker, value=value, groups=groups)


def _match(line: LogLine, marker: Marker) -> re.Match[str] | None:
    if marker.plain if line.is_logger else not (marker.bare or marker.plain):
        return None
    if marker.not_from and _file_of(line) in marker.not_from:
        return None
    message = line.message.lstrip() if marker.bare or marker.plain else line.message
    if not message.startswith(marker.starts):
        return None
    if not marker.begins:
        return marker.pattern.match(message)
    return marker.pattern.search(message) if message.startswith(marker.begins) else None


def _file_of(line: LogLine) -> str:
    """``logger.py`` of ``vllm/entrypoints/logger.py:40`` and of the logger's name in a JSON line."""
    name = (line.source or "").rsplit("/", 1)[-1].split(":", 1)[0]
    return name if name.endswith(".py") or not name else f"{name.rsplit('.', 1)[-1]}.py"


def _value(marker: Marker, groups: Mapping[str, str]) -> Value | None:
    if marker.constant is not None:
        return marker.constant
    text = groups.get("value") or groups.get("cpu") or groups.get("name")
    return None if text is None else parse_value(text, marker.type)


def literal_prefix(pattern: str) -> str:
    """What every text that the pattern matches starts with; empty when it has alternatives.

    >>> literal_prefix(r"kv lcm block sizes (?P<value>\\d+)")
    'kv lcm block sizes '
    """
    prefix, position = "", 0
    while position < len(pattern):
        char = pattern[position]
        if char == "\\" and not pattern[position + 1 : position + 2].isalnum():
            position += 1
            char = pattern[position]
        elif char in _META:
            return prefix[:-1] if char in "*?{|" and prefix else prefix
        prefix += char
        position += 1
    return prefix


def parse_value(text: str, kind: ValueType) -> Value | None:
    """Text of a log as a value; None when it says nothing (``None``, not a number)."""
    return None if text in ("None", "") else _PARSERS[kind](text)


def _int(text: str) -> int | None:
    digits = text.replace(",", "").replace("_", "")
    return int(digits) if digits.isdecimal() and len(digits) < 20 else None


def _float(text: str) -> float | None:
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _bool(text: str) -> bool | None:
    lowered = text.lower()
    return True if lowered in _TRUE else False if lowered in _FALSE else None


def _list(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in _LIST_ITEM.findall(text))


def _reasons(text: str) -> tuple[str, ...] | None:
    """``A: [x, y], B: [z]`` -> ``("A: x, y", "B: z")``; vLLM's other wording names one backend."""
    found = tuple(f"{m['name']}: {m['why'].strip()}" for m in _REASON.finditer(text))
    one = _ONE_REASON.match(text)
    if one is not None:
        found = (f"{one['name']}: {one['why'].strip(' .[]').strip(chr(39))}",)
    return found or None


def _ints(text: str) -> tuple[int, ...] | None:
    items = tuple(_int(item) for item in _list(text))
    numbers = tuple(item for item in items if item is not None)
    return numbers if len(numbers) == len(items) and numbers else None


_PARSERS: Mapping[ValueType, Callable[[str], Value | None]] = {
    "int": _int,
    "float": _float,
    "bool": _bool,
    "list": _list,
    "ints": _ints,
    "reasons": _reasons,
    "str": str,
}
