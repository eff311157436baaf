"""One physical log line -> who said it, when, at which level, and the message itself.

vLLM's own format is ``(Process pid=1) LEVEL MM-DD HH:MM:SS [file.py:12] message``; before 0.7 the
bracket closed after the line number only. Around it stand whatever collected the log: terminal
colours, Ray, Docker Compose, Kubernetes, journald, CI systems. Every pattern here is linear.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hwtune.domain.json_lines import split_json, unwrap_json
from hwtune.domain.line_prefixes import LearntPrefixes, service_of, strip_known
from hwtune.domain.line_quoting import split_quoted, unquote
from hwtune.domain.log_headers import ANY, Header, find_header

_ANSI = re.compile(
    r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|[\]_P^][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-OQ-Z\\-_])"
)
_ANSI_REST = re.compile(
    r"(?<![0-9a-fA-F])\[(?:0;)?\d{1,2}(?:;\d{1,3}){0,4}m(?=[(\s])|(?<=\))\[0(?:;0)?m"
)
_ANSI_SPELT = re.compile(r"(?:\\(?:x1[bB]|u001[bB]|033|e)|#033|\^\[|\u241b|\ufffd)\[[\d;]{0,20}m")
"""The escape byte as collectors and editors write it: ``\\x1b``, rsyslog's ``#033``, ``^[``."""
_PROCESS = re.compile(
    r"\((?P<name>[A-Za-z_][\w :.,=-]{0,60}?),? ?(?P<ids>(?:rank=\d+ )?pid=\d+[^()]{0,60})\) ?"
)
_PROCESS_ALONE = re.compile(
    r"\((?P<name>(?:APIServer|ApiServer|EngineCore|Worker|VllmWorker|RayWorkerWrapper)\w{0,40})\) ?"
)
"""As people post it, without the number."""
_RAY_PID = re.compile(r"\((?P<ids>pid=\d+[^()]{0,60})\) ?")
_TAIL = re.compile(
    r" \[(?P<pid>\d{1,10}),\d{1,20}\]\[(?P<source>[\w./-]{1,120}:\d{1,6}),[^\]]{1,80}\]$"
)
"""UCM's logger names process, thread, file and function behind the message."""
_REPEATED = re.compile(
    r" ?\[repeated \d+x across cluster\](?: \(Ray deduplicates .{0,400}|.{0,120})$"
)
_MAX_PREFIXES = 8
_MAX_JSON_LINES = 400
"""Lines of one JSON message that are read; a traceback is shorter."""


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
    """A later line of one message: the same header as the line before, which ended in CR, or one
    behind a line end inside a JSON string."""
    trailing_cr: bool = False
    service: str = ""
    """Container that wrote it, where Docker says so."""

    @property
    def is_logger(self) -> bool:
        """Whether a logger wrote it."""
        return self.level is not None


def strip_colours(text: str) -> str:
    """Removes terminal escape sequences, also those whose escape byte was lost on the way."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "m(" in text or "m " in text:
        text = _ANSI_SPELT.sub("", text)
    if "m(" in text or ")[0" in text or text.startswith("["):
        text = _ANSI_REST.sub("", text)
    return text


def split_progress(text: str) -> Iterator[str]:
    """A progress bar overwrites its line with bare CRs; each piece is a line of its own.

    So is each line that a list of strings or a paste without line ends holds.
    A CR at the very end belongs to the line end and stays.
    """
    if "\r" not in text[:-1]:
        for piece in split_json(text):
            yield from split_quoted(piece)
        return
    *pieces, last = text.split("\r")
    for piece in pieces:
        if piece:
            yield piece + "\r"
    if last:
        yield last


def parse_line(
    file: str,
    number: int,
    raw: str,
    previous: LogLine | None = None,
    prefixes: LearntPrefixes | None = None,
) -> LogLine:
    """The first line of what one physical line holds; never raises.

    Args:
        file: name of the file.
        number: from 1.
        raw: the physical line.
        previous: the line before, of the same file.
        prefixes: what this file's headers taught, and what this line may teach.
    """
    return parse_lines(file, number, raw, previous, prefixes)[0]


def parse_lines(
    file: str,
    number: int,
    raw: str,
    previous: LogLine | None = None,
    prefixes: LearntPrefixes | None = None,
) -> tuple[LogLine, ...]:
    """What one physical line holds: one line, or all those of a JSON message; never raises."""
    trailing_cr = raw.endswith("\r")
    text = unquote(_REPEATED.sub("", strip_colours(raw.rstrip().lstrip("\ufeff"))))
    blank = LogLine(
        file=file,
        number=number,
        process=None,
        time=None,
        level=None,
        source=None,
        message="",
        trailing_cr=trailing_cr,
        service=service_of(text),
    )
    lines = _from_text(blank, strip_known(text, until=ANY), prefixes)
    first = lines[0]
    if previous is None or not previous.trailing_cr or not first.is_logger:
        return lines
    mine = (first.process, first.time, first.level, first.source)
    if mine != (previous.process, previous.time, previous.level, previous.source):
        return lines
    return (dataclasses.replace(first, continued=True), *lines[1:])


def _from_text(
    blank: LogLine, text: str, prefixes: LearntPrefixes | None, *, learnt: bool = False
) -> tuple[LogLine, ...]:
    process, rest = _processes(text)
    if rest.startswith("{"):
        record = unwrap_json(rest)
        if record is not None:
            lines = _from_json(blank, record)
            return tuple(
                dataclasses.replace(line, process=line.process or process) for line in lines
            )
    trusted = None if prefixes is None else prefixes.trusts
    head = find_header(rest, without=_PROCESS, trusted=trusted)
    if head is not None:
        return (_with_header(blank, rest, head, process, prefixes),)
    if prefixes is not None and not learnt:
        bare = prefixes.strip(rest)
        if bare != rest:
            lines = _from_text(blank, bare, prefixes, learnt=True)
            return tuple(
                dataclasses.replace(line, process=line.process or process) for line in lines
            )
    return (dataclasses.replace(blank, process=process, message=rest),)


def _with_header(
    blank: LogLine, text: str, head: Header, process: str | None, prefixes: LearntPrefixes | None
) -> LogLine:
    prefix = text[: head.start]
    inner = None
    found = _PROCESS.search(prefix) or _RAY_PID.search(prefix)
    if found is not None:
        inner, _ = _processes(prefix[found.start() :])
        prefix = prefix[: found.start()]
    if prefixes is not None:
        prefixes.learn(prefix)
    message = text[head.end :]
    tail = _TAIL.search(message[-300:]) if head.source is None else None
    return dataclasses.replace(
        blank,
        process=inner or process or (f"pid={tail['pid']}" if tail else None),
        time=head.time,
        level=head.level,
        source=tail["source"] if tail else head.source,
        message=message[: len(message) - len(tail[0])] if tail else message,
    )


def _processes(text: str) -> tuple[str | None, str]:
    """Leading process prefixes, the innermost of which wrote the line, and the rest."""
    process = None
    for _ in range(_MAX_PREFIXES):
        match = _PROCESS.match(text) or _RAY_PID.match(text) or _PROCESS_ALONE.match(text)
        if match is None:
            break
        groups = match.groupdict()
        process = " ".join(part.strip() for part in (groups.get("name"), groups.get("ids")) if part)
        text = strip_known(text[match.end() :], until=ANY)
    return process, text


def _from_json(blank: LogLine, record: Mapping[str, str]) -> tuple[LogLine, ...]:
    """The lines of a JSON message; one that is itself a formatted line is read as one."""
    text, *more = strip_colours(record.get("message", "").rstrip("\r\n")).split("\n")
    (line, *_) = _from_text(blank, strip_known(text, until=ANY), None)
    if not line.is_logger and record.get("level"):
        line = dataclasses.replace(
            line,
            process=line.process or record.get("process") or None,
            time=record.get("time") or None,
            level=record["level"].upper(),
            source=record.get("source") or None,
        )
    more += record.get("trace", "").split("\n") if record.get("trace") else []
    later = (
        dataclasses.replace(line, level=None, continued=True, message=text)
        for text in more[:_MAX_JSON_LINES]
    )
    return (line, *later)
