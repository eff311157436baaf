"""One physical log line -> who said it, when, at which level, and the message itself.

vLLM's own format is ``(Process pid=1) LEVEL MM-DD HH:MM:SS [file.py:12] message``; before 0.7 the
bracket closed after the line number only. Around it stand whatever collected the log: terminal
colours, Ray, Docker Compose, Kubernetes, journald, CI systems. Every pattern here is linear.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hwtune.domain.json_lines import unwrap_json

_ANSI = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])")
_ANSI_REST = re.compile(r"\[(?:0;)?\d{1,2}(?:;\d{1,3}){0,4}m(?=[(\s])|(?<=\))\[0(?:;0)?m")
_PROCESS = re.compile(
    r"\((?P<name>[A-Za-z_][\w :.-]{0,60}?) ?(?P<ids>(?:rank=\d+ )?pid=\d+[^()]{0,60})\) ?"
)
_RAY_PID = re.compile(r"\((?P<ids>pid=\d+[^()]{0,60})\) ?")
_REPEATED = re.compile(r" ?\[repeated \d+x across cluster\].{0,120}$")
_LEVEL = r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)"
_HEADERS = (
    # vLLM >= 0.7: INFO 06-01 10:00:00 [file.py:12] message; < 0.7: ... file.py:12] message
    re.compile(
        _LEVEL
        + r" (?P<time>\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)? \[?(?P<source>[\w./-]{1,160}:\d+)\] ?"
    ),
    # vllm-ascend and libraries: [2026-03-03 12:20:54] INFO file.py:69: message
    re.compile(
        r"\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[.,]?\d*\] "
        + _LEVEL
        + r" (?P<source>[\w./-]{1,160}:\d+): ?"
    ),
    # [2026-04-20 10:56:24.647187][UC][E] message
    re.compile(
        r"\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[.,]?\d*\]\[\w{1,20}\]\[(?P<letter>[DIWEC])\] "
    ),
    # logging's default with a configured format: 2026-01-01 10:00:00,123 - vllm.x - INFO - message
    re.compile(
        r"(?P<time>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?[ |:-]{1,5}"
        r"(?:(?P<source>[A-Za-z_][\w./:-]{0,160}?)[ |:-]{1,5})?" + _LEVEL + r"[ |:-]{1,5}"
    ),
)
_LETTERS = {"D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "C": "CRITICAL"}
_MAX_PREFIXES = 8
_HEADER_WITHIN = 400
"""A header that begins later than this is part of a message, not of a prefix."""
_QUOTING = re.compile(r"""["'`{<\\=]""")
_OUTER = (
    # Kubernetes CRI: 2025-07-29T12:19:19.333962774+07:00 stdout F message
    re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S{0,20} (?:stdout|stderr) [FP] "),
    # RFC 3339 or wall clock in front, with or without a bar: 2026-05-01 23:11:43.736 | message
    re.compile(r"\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,]?\d{0,9}(?:Z|[+-]\d\d:?\d\d)?\]? ?\| ?"),
    re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.,]?\d{0,9}(?:Z|[+-]\d\d:?\d\d)? "),
    re.compile(r"\[\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.,]?\d{0,9}(?:Z|[+-]\d\d:?\d\d)?\] "),
    # journald in any language: Aug 18 14:14:54 host program[123]: message
    re.compile(
        r"[^\W\d_]{2,12}\.? {1,2}\d{1,2} \d\d:\d\d:\d\d \S{1,80} [\w.@/-]{1,80}(?:\[\d+\])?: "
    ),
    # Docker Compose: service-1  | message
    re.compile(r"[A-Za-z0-9][\w.-]{0,80} {0,40}\| "),
    # Buildkite's container column:   | message
    re.compile(r" {1,8}\| "),
    # kubectl logs --prefix: [pod/name/container] message
    re.compile(r"\[pod/[^\]]{1,200}\] "),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line as its program wrote it."""

    file: str
    number: int
    process: str | None
    time: str | None
    level: str | None
    """None: the line has no logger header (a print, a traceback, another program)."""
    source: str | None
    """``file.py:12`` of the logging call."""
    message: str
    continued: bool = False
    """Same header as the line before, which ended in CR: a later line of one message."""
    trailing_cr: bool = False

    @property
    def is_logger(self) -> bool:
        """Whether a logger wrote it."""
        return self.level is not None


def strip_colours(text: str) -> str:
    """Removes terminal escape sequences, also those whose escape byte was lost on the way."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "m(" in text or ")[0" in text or text.startswith("["):
        text = _ANSI_REST.sub("", text)
    return text


def split_progress(text: str) -> Iterator[str]:
    """A progress bar overwrites its line with bare CRs; each piece is a line of its own.

    A CR at the very end belongs to the line end and stays.
    """
    if "\r" not in text[:-1]:
        yield text
        return
    *pieces, last = text.split("\r")
    for piece in pieces:
        if piece:
            yield piece + "\r"
    if last:
        yield last


def parse_line(file: str, number: int, raw: str, previous: LogLine | None = None) -> LogLine:
    """Reads one line; never raises. ``previous`` is the line before, of the same file."""
    trailing_cr = raw.endswith("\r")
    text = _REPEATED.sub("", strip_colours(raw.rstrip("\r\n")))
    outer = _strip_outer(text)
    if outer.startswith("{"):
        record = unwrap_json(outer)
        if record is not None:
            return _from_json(file, number, record, trailing_cr)
    line = _from_text(file, number, outer, trailing_cr)
    if previous is None or not previous.trailing_cr or not line.is_logger:
        return line
    return _mark_continued(line, previous)


def _mark_continued(line: LogLine, previous: LogLine) -> LogLine:
    mine = (line.process, line.time, line.level, line.source)
    if mine != (previous.process, previous.time, previous.level, previous.source):
        return line
    return _replace(line, continued=True)


def _replace(line: LogLine, *, continued: bool) -> LogLine:
    return LogLine(
        file=line.file,
        number=line.number,
        process=line.process,
        time=line.time,
        level=line.level,
        source=line.source,
        message=line.message,
        continued=continued,
        trailing_cr=line.trailing_cr,
    )


def _strip_outer(text: str) -> str:
    for _ in range(3):
        for pattern in _OUTER:
            match = pattern.match(text)
            if match and not _is_header(text):
                text = text[match.end() :]
                break
        else:
            return text
    return text


def _is_header(text: str) -> bool:
    return any(pattern.match(text) for pattern in _HEADERS)


def _processes(text: str) -> tuple[str | None, str]:
    """Leading process prefixes, the innermost of which wrote the line, and the rest."""
    process = None
    for _ in range(_MAX_PREFIXES):
        match = _PROCESS.match(text) or _RAY_PID.match(text)
        if match is None:
            break
        name = match.groupdict().get("name")
        ids = match["ids"].strip()
        process = f"{name} {ids}" if name else ids
        text = text[match.end() :]
    return process, text


def _from_text(file: str, number: int, text: str, trailing_cr: bool) -> LogLine:
    process, rest = _processes(text)
    if rest.startswith("{"):
        record = unwrap_json(rest)
        if record is not None:
            return _from_json(file, number, {**record, "process": process or ""}, trailing_cr)
    head = _find_header(rest)
    if head is None:
        return LogLine(
            file=file,
            number=number,
            process=process,
            time=None,
            level=None,
            source=None,
            message=rest,
            trailing_cr=trailing_cr,
        )
    prefix = rest[: head.start()]
    inner, _ = _processes(prefix[prefix.find("(") :]) if "(" in prefix else (None, "")
    groups = head.groupdict()
    return LogLine(
        file=file,
        number=number,
        process=inner or process,
        time=groups.get("time"),
        level=groups.get("level") or _LETTERS.get(groups.get("letter") or "", "INFO"),
        source=groups.get("source"),
        message=rest[head.end() :],
        trailing_cr=trailing_cr,
    )


def _find_header(text: str) -> re.Match[str] | None:
    """The header at the start, or behind a prefix of unknown make that quotes nothing."""
    for pattern in _HEADERS:
        match = pattern.match(text)
        if match:
            return match
    match = _HEADERS[0].search(text, 0, _HEADER_WITHIN)
    if match is None:
        return None
    prefix = _PROCESS.sub("", text[: match.start()])
    return None if _QUOTING.search(prefix) else match


def _from_json(file: str, number: int, record: Mapping[str, str], trailing_cr: bool) -> LogLine:
    """A line of JSON logging; a message that is itself a formatted line is read as one."""
    message = record.get("message", "").rstrip("\r\n")
    inner = _from_text(file, number, strip_colours(message.split("\n", 1)[0]), trailing_cr)
    if inner.is_logger or not record.get("level"):
        return inner
    return LogLine(
        file=file,
        number=number,
        process=inner.process or record.get("process") or None,
        time=record.get("time") or None,
        level=record["level"].upper(),
        source=record.get("source") or None,
        message=inner.message,
        trailing_cr=trailing_cr,
    )
