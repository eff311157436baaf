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
    # syslog's priority, RFC 5424 with its version: <30>1 message
    re.compile(r"<\d{1,3}>(?:\d )?"),
    # Open MPI's --tag-output: [1,0]<stderr>: message
    re.compile(r"\[\d{1,5},\d{1,5}\]<std(?:out|err|diag)>: ?"),
    # Kubernetes CRI: 2025-07-29T12:19:19.333962774+07:00 stdout F message
    re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S{0,20} (?:stdout|stderr) [FP] "),
    # GitLab: 2026-01-02T03:04:05.123456Z 01O message
    re.compile(rf"{_ISO} \d\d[OE][+ ]?"),
    # logcli's and Grafana's labels, with or without a time before: {app="vllm", pod="a"} message
    re.compile(
        r'(?:\d{4}-\d\d-\d\dT\S{1,40}\s{1,4})?\{(?:[A-Za-z_][\w.]{0,80}="[^"]{0,400}"(?:, ?)?){1,40}\}\s{1,4}'
    ),
    # journald, --output=short-iso and short-full
    re.compile(rf"{_ISO} {_HOST_AND_PROGRAM}"),
    re.compile(
        r"[^\W\d_]{2,5} \d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})? \S{1,8} " + _HOST_AND_PROGRAM
    ),
    # RFC 3339 or wall clock in front, with or without a bar: 2026-05-01 23:11:43.736 | message
    re.compile(r"\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,]?\d{0,9}(?:Z|[+-]\d\d:?\d\d)?\]? ?\| ?"),
    re.compile(rf"{_ISO}[ \t]"),
    re.compile(rf"\[{_ISO}\] "),
    # journald in any language, and short-precise: Aug 18 14:14:54 host program[123]: message
    re.compile(r"[^\W\d_]{2,12}\.? {1,2}\d{1,2} \d\d:\d\d:\d\d(?:\.\d{1,6})? " + _HOST_AND_PROGRAM),
    # the kernel's clock, and journald's --output=short-monotonic: [ 1234.567890] message
    re.compile(rf"\[ {{0,6}}\d{{1,10}}\.\d{{1,6}}\] (?:{_HOST_AND_PROGRAM})?"),
    # dmesg -T: [Mon Nov 30 12:00:00 2026] message
    re.compile(r"\[[^\W\d_]{1,5} [^\W\d_]{1,5} {1,2}\d{1,2} \d\d:\d\d:\d\d \d{4}\] "),
    # Docker Compose: service-1  | message; docker service logs: stack_service.1.id@node | message
    re.compile(r"[A-Za-z0-9][\w.@-]{0,120} {0,40}\| "),
    # Buildkite's container column:   | message
    re.compile(r" {1,8}\| "),
    # kubectl logs --prefix: [pod/name/container] message
    re.compile(r"\[pod/[^\]]{1,200}\] "),
    # Fluentd's file output: 2026-05-01 10:00:00 +0000 tag: {"log": "message"}
    re.compile(rf"{_CLOCK} [+-]\d{{4}} [\w.*-]{{1,120}}: (?=\{{)"),
    # Markdown's quotation: > message
    re.compile(r"(?:> ){1,3}|>(?=[\w(\[])"),
    # Kaggle's log, a list of objects with one per line
    re.compile(r"[\[,](?=\{\")"),
    # torchrun and srun --label: [rank0]: message, [default0]:message, 12: message
    re.compile(r"\[(?:rank|default)\d{1,5}\]: ?"),
    re.compile(r" {0,5}\d{1,5}: "),
)
_CAPTURED = re.compile(rf"{_CLOCK} \| (?:INFO|ERROR) \| (?:stdout|stderr) \| ")
"""FastChat's logger, which takes over what others print; it looks like a header, and is none."""
_MAX_KNOWN = 3
"""Known prefixes that may stand one after the other."""
_MAX_LEARNT = 16
_ENOUGH = 3
"""Times a prefix with quotation marks must be seen among the first lines."""
_MAX_CHARS = 200
_LEVELS = r"(?i:trace|debug|info|notice|warn(?:ing)?|err(?:or)?|critical|fatal)"
_VARIES = re.compile(rf"( *)\d+|\b{_LEVELS}\b( *)")
_GAP = " *"
_SERVICE = re.compile(rf"(?:{_ISO} )?(?P<name>[A-Za-z0-9][\w.@-]{{0,120}}) {{0,40}}\| ")


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

    __slots__ = ("_doubtful", "_known", "_shapes", "teaching")

    def __init__(self) -> None:
        self._shapes: dict[str, re.Pattern[str]] = {}
        self._known: set[str] = set()
        self._doubtful: dict[str, int] = {}
        self.teaching = False
        """Whether the first lines of the file are being looked at, before any request."""

    def trusts(self, prefix: str) -> bool:
        """Whether a prefix with quotation marks in it is a collector's, not a user's text.

        It is when it stood before several of the first lines, with its digits and level changed.
        """
        if not self._doubtful and not self.teaching:
            return False
        shape = _shape(prefix[:_MAX_CHARS])
        if self.teaching and len(self._doubtful) < _MAX_LEARNT:
            self._doubtful[shape] = self._doubtful.get(shape, 0) + 1
        return self._doubtful.get(shape, 0) >= _ENOUGH

    def learn(self, prefix: str) -> None:
        """Remembers the shape of a prefix: its digits and level may change, nothing else."""
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


def service_of(text: str) -> str:
    """Container that Docker Compose names before a line; empty when it names none."""
    found = _SERVICE.match(text) if "| " in text[:200] else None
    return found["name"] if found else ""


def _shape(prefix: str) -> str:
    """``  12 [Info] `` -> a pattern that also matches ``   7 [Error] ``: numbers are padded."""
    parts, position = [], 0
    for match in _VARIES.finditer(prefix):
        parts.append(re.escape(prefix[position : match.start()]))
        if match[2] is not None:
            parts.append(rf"{_LEVELS}\b *")
        else:
            parts.append((_GAP if match[1] else "") + r"\d+")
        position = match.end()
    return "".join(parts) + re.escape(prefix[position:])
