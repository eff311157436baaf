"""What collectors put in front of a line: known shapes, and shapes learnt from the log itself.

A logger's header shows where its message begins, so whatever stood before it is a prefix. The same
prefix stands before lines that have no header of their own (uvicorn's, tracebacks, prints), where
nothing else tells it from the text. Every pattern here is linear.
"""

from __future__ import annotations

import re

_ISO = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.,]?\d{0,9}(?:Z|[+-]\d\d:?\d\d)?"
_CLOCK = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
_HOST_AND_PROGRAM = (
    r"\S{1,80} (?!(?:TRACE|DEBUG|INFO|WARNING|ERROR|CRITICAL):)[\w.@/-]{1,80}(?:\[\d+\])?: "
)
_KNOWN = (
    # Kubernetes CRI: 2025-07-29T12:19:19.333962774+07:00 stdout F message
    re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S{0,20} (?:stdout|stderr) [FP] "),
    # GitLab: 2026-01-02T03:04:05.123456Z 01O message
    re.compile(rf"{_ISO} \d\d[OE][+ ]?"),
    # journald, --output=short-iso and short-full
    re.compile(rf"{_ISO} {_HOST_AND_PROGRAM}"),
    re.compile(
        r"[^\W\d_]{2,5} \d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})? \S{1,8} " + _HOST_AND_PROGRAM
    ),
    # RFC 3339 or wall clock in front, with or without a bar: 2026-05-01 23:11:43.736 | message
    re.compile(r"\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,]?\d{0,9}(?:Z|[+-]\d\d:?\d\d)?\]? ?\| ?"),
    re.compile(rf"{_ISO} "),
    re.compile(rf"\[{_ISO}\] "),
    # journald in any language: Aug 18 14:14:54 host program[123]: message
    re.compile(r"[^\W\d_]{2,12}\.? {1,2}\d{1,2} \d\d:\d\d:\d\d " + _HOST_AND_PROGRAM),
    # Docker Compose: service-1  | message
    re.compile(r"[A-Za-z0-9][\w.-]{0,80} {0,40}\| "),
    # Buildkite's container column:   | message
    re.compile(r" {1,8}\| "),
    # kubectl logs --prefix: [pod/name/container] message
    re.compile(r"\[pod/[^\]]{1,200}\] "),
    # Fluentd's file output: 2026-05-01 10:00:00 +0000 tag: {"log": "message"}
    re.compile(rf"{_CLOCK} [+-]\d{{4}} [\w.*-]{{1,120}}: (?=\{{)"),
    # torchrun and srun --label: [rank0]: message, [default0]:message, 12: message
    re.compile(r"\[(?:rank|default)\d{1,5}\]: ?"),
    re.compile(r" {0,5}\d{1,5}: "),
)
_CAPTURED = re.compile(rf"{_CLOCK} \| (?:INFO|ERROR) \| (?:stdout|stderr) \| ")
"""FastChat's logger, which takes over what others print; it looks like a header, and is none."""
_MAX_KNOWN = 3
"""Known prefixes that may stand one after the other."""
_MAX_LEARNT = 16
_MAX_CHARS = 200
_NUMBER = re.compile(r"( *)\d+")
_GAP = " *"


def strip_known(text: str, *, until: re.Pattern[str]) -> str:
    """Takes known prefixes off, but nothing that begins a logger's header (``until``)."""
    captured = _CAPTURED.match(text)
    text = text[captured.end() :] if captured else text
    for _ in range(_MAX_KNOWN):
        for pattern in _KNOWN:
            match = pattern.match(text)
            if match and not until.match(text):
                text = text[match.end() :]
                break
        else:
            return text
    return text


class LearntPrefixes:
    """Prefixes of unknown make, seen before headers of one file."""

    __slots__ = ("_known", "_shapes")

    def __init__(self) -> None:
        self._shapes: dict[str, re.Pattern[str]] = {}
        self._known: set[str] = set()

    def learn(self, prefix: str) -> None:
        """Remembers the shape of a prefix: its digits may change, nothing else."""
        if not prefix or prefix in self._known or len(prefix) > _MAX_CHARS:
            return
        if len(self._shapes) >= _MAX_LEARNT:
            return
        self._known.add(prefix)
        shape = _shape(prefix)
        self._shapes.setdefault(shape, re.compile(shape))

    def strip(self, text: str) -> str:
        """The text without the longest learnt prefix that it starts with."""
        ends = [m.end() for m in (shape.match(text) for shape in self._shapes.values()) if m]
        return text[max(ends) :] if ends else text


def _shape(prefix: str) -> str:
    """``  12 | `` -> a pattern that also matches ``   7 | ``: numbers are padded with blanks."""
    parts, position = [], 0
    for match in _NUMBER.finditer(prefix):
        parts.append(re.escape(prefix[position : match.start()]))
        parts.append((_GAP if match[1] else "") + r"\d+")
        position = match.end()
    return "".join(parts) + re.escape(prefix[position:])
