"""Finds what went wrong first, in a stream of lines of several processes.

A failed start prints the cause once, in the process that hit it, and then one traceback per
process that waited for it. The last one is the least informative. Rules:

* an exception is the first unindented line after ``Traceback (most recent call last):`` of the
  same process;
* an exception that only says that another process failed is a *wrapper*;
* a traceback logged by the code that serves requests, or behind uvicorn's "Exception in ASGI
  application", is a request's error, not the server's;
* one of Python's own tidying up, of its logging or of vLLM's usage report ends nothing;
* frames without that line (an excerpt) open a traceback, too, for a few lines;
* an exception on a line of its own is taken for want of better, while the server starts;
* what a server prints after it was asked to stop is its way of stopping, not a cause.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from hwtune.domain.evidence import Evidence, Failure, Phase, Place
from hwtune.domain.failure_words import (
    IN_WORDS,
    MAIN_GAVE_UP,
    NOTEBOOK,
    RAW,
    RELAYED,
    REQUEST_FILES,
    STOPPED,
    WRAPPERS,
)
from hwtune.domain.log_lines import LogLine

_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"(?P<name>[A-Za-z_][\w.]{0,200})(?:: (?P<text>.*)|:?\s*)$")
_NO_EXCEPTION = frozenset({"TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "FATAL"})
"""uvicorn's levels stand where an exception's name would."""
_LOOKS_LIKE_EXCEPTION = re.compile(r"(?:Error|Exception|Failure|Timeout|Exit|Interrupt|Warning)$")
_FRAME = re.compile(
    r"""\s{0,20}File "(?:[^"]{0,300}[/\\])?(?P<where>[^"/\\]{1,100}", line \d+, in \S{1,100})"""
)
_ASIDE = re.compile(
    r"""/(?:usage/usage_lib|multiprocessing/resource_tracker|collect_env)\.py", line \d+, in """
)
"""A frame that tells that the traceback ends nothing."""
_ASIDE_FIRST = re.compile(r"""/logging/\w+\.py", line \d+, in emit$|, in __del__$""")
"""The same, as the outermost frame: of "Logging error" and of "Exception ignored in"."""
_DETAIL = re.compile(r"^\s{1,8}\S")
_MAX_TEXT = 500
_MAX_AGE = 2000
"""Lines of other processes that may stand between two lines of one traceback."""
_MAX_AGE_OF_EXCERPT = 40
"""The same, where the traceback's first line is missing."""
_ALONE = re.compile(
    r"(?:EngineCore hit an exception: )?(?:[A-Za-z_]\w{0,80}\.){0,8}(?:[A-Z]\w{1,80}(?:Error|Exception)|Exception): \S"
    r"| {0,8}(?:Value error|Assertion failed), \S"
)
"""An exception's line that nothing precedes; pydantic's second line says why."""
_ASGI = "Exception in ASGI application"


_Key = tuple[str, str | None, bool]
"""File, process, and whether a logger wrote the lines of a traceback. Lines that name their
process may go on in the next file of a rotated log, so that their file does not count."""


def _key(line: LogLine) -> _Key:
    return (line.file if line.process is None else "", line.process, line.is_logger)


@dataclass(slots=True)
class _Open:
    """A traceback being read."""

    source: str | None
    phase: Phase
    """Of its first line: a request to stop that comes in between did not cause it."""
    frame: str = ""
    """Innermost frame so far, for exceptions without a text."""
    age: int = 0
    """Lines since its last line; a traceback that never ends is given up."""
    aside: bool = False
    """Whether a frame told that it ends nothing."""
    interrupted: bool = False
    """Lines of another program stood between its own."""
    max_age: int = _MAX_AGE
    of_request: bool = False
    """Whether a request failed with it."""

    def see(self, text: str) -> None:
        """Takes an indented line, which may be a frame."""
        frame = _FRAME.match(text)
        if frame is None:
            return
        text = text.rstrip()
        first = not self.frame and _ASIDE_FIRST.search(text)
        self.aside = self.aside or bool(first or _ASIDE.search(text))
        self.frame = frame["where"]


@dataclass(slots=True)
class _Pending:
    """An exception whose text goes on in the next line (pydantic), or only begins there."""

    key: _Key
    failure: Failure
    begins: bool = False


class FailureTracker:
    """Feed it every line in order; ``failures`` grows as exceptions appear."""

    def __init__(self) -> None:
        self.failures: list[Failure] = []
        self.request_errors = 0
        self._open: dict[_Key, _Open] = {}
        self._pending: _Pending | None = None
        self._alone: set[str] = set()
        self._request: _Key | None = None

    def busy(self, file: str) -> bool:
        """Whether a traceback is open in a file, so that any line of it may matter."""
        keys = [*self._open, *([] if self._pending is None else [self._pending.key])]
        return any(key[0] in ("", file) for key in keys)

    def rename(self, old: str, new: str) -> None:
        """What is open in one file goes on in another."""
        for key in [key for key in self._open if key[0] == old]:
            self._open.setdefault((new, *key[1:]), self._open.pop(key))

    @property
    def gave_up(self) -> bool:
        """Whether the server's own process reported that its start failed."""
        return any(
            failure.wrapper and MAIN_GAVE_UP.match(failure.text) for failure in self.failures[-1:]
        )

    def feed(self, line: LogLine, place: Place, *, phase: Phase) -> None:
        """Takes one line. ``phase``: how far the server had got before it."""
        key = _key(line)
        if self._pending is not None:
            self._finish_detail(key, line)
        if line.message.endswith(_ASGI):
            self._request = key
        elif line.is_logger and key[:2] == (self._request or ())[:2]:
            self._request = None
        text = line.message.rstrip()
        if text.endswith(_TRACEBACK) or NOTEBOOK.match(text):
            of_request = key == self._request
            self._open[key] = _Open(source=line.source, phase=phase, of_request=of_request)
            return
        self._forget_old()
        if line.is_logger and line.level not in ("ERROR", "CRITICAL"):
            return
        opened = self._open.get(key) or self._excerpt(key, line, phase)
        if opened is None:
            self._take_alone(line, place, text, phase)
        elif line.message[:1] in ("", " ", "\t", "^", "|"):
            opened.age = 0
            opened.see(line.message)
        else:
            self._end(key, line, place, opened)

    def _end(self, key: _Key, line: LogLine, place: Place, opened: _Open) -> None:
        match = _EXCEPTION.match(line.message.rstrip())
        if match is None or not _may_end(match["name"], opened):
            opened.interrupted = True
            return
        del self._open[key]
        self._close(line, place, opened, match)

    def _excerpt(self, key: _Key, line: LogLine, phase: Phase) -> _Open | None:
        """A traceback whose first line is missing begins with any frame."""
        if _FRAME.match(line.message) is None:
            return None
        self._open[key] = opened = _Open(
            source=line.source,
            phase=phase,
            interrupted=True,
            max_age=_MAX_AGE_OF_EXCERPT,
            of_request=key == self._request,
        )
        return opened

    def _take_alone(self, line: LogLine, place: Place, text: str, phase: Phase) -> None:
        if phase != "start" or _ALONE.match(text) is None:
            return
        if line.source and REQUEST_FILES.match(line.source):
            return
        text = text.strip()[:_MAX_TEXT]
        if not any(text in failure.text for failure in self.failures):
            failure = self._add(text, place, phase=phase, wrapper=True)
            self._alone.add(text)
            if "validation error" in text:
                self._pending = _Pending(key=_key(line), failure=failure)

    def started(self) -> None:
        """The start completed, so that what was only taken for want of better ended nothing."""
        alone = tuple(self._alone)
        self.failures = [f for f in self.failures if not (f.wrapper and f.text.startswith(alone))]

    def _forget_old(self) -> None:
        for key, opened in list(self._open.items()):
            opened.age += 1
            if opened.age > opened.max_age:
                del self._open[key]

    def fatal(self, text: str, place: Place, *, phase: Phase, echo: bool = False) -> None:
        """A message that means the end without any traceback; an ``echo`` says not why."""
        self._add(text, place, phase=phase, wrapper=echo or text.startswith(WRAPPERS))

    def _close(self, line: LogLine, place: Place, opened: _Open, match: re.Match[str]) -> None:
        if match["name"].rsplit(".", 1)[-1] in STOPPED or match["name"] in STOPPED:
            return
        if opened.aside:
            return
        if opened.of_request or (opened.source and REQUEST_FILES.match(opened.source)):
            self.request_errors += 1
            return
        text = match["text"] or ""
        shown = line.message.strip() if text else _without_text(match["name"], opened.frame)
        reports = RELAYED.sub("", text).startswith(WRAPPERS)
        failure = self._add(shown, place, phase=opened.phase, wrapper=reports)
        begins = not text and line.message.rstrip().endswith(":")
        if begins or "validation error" in text:
            self._pending = _Pending(key=_key(line), failure=failure, begins=begins)

    def _finish_detail(self, key: _Key, line: LogLine) -> None:
        pending = self._pending
        if pending is None or key != pending.key:
            return
        self._pending = None
        old = pending.failure
        if old not in self.failures:  # told before, or forgotten since the start completed
            return
        if _DETAIL.match(line.message) or (pending.begins and line.message.strip()):
            text = f"{old.text}: {line.message.strip()}"[:_MAX_TEXT]
            self.failures[self.failures.index(old)] = dataclasses.replace(old, text=text)

    def _add(self, text: str, place: Place, *, phase: Phase, wrapper: bool) -> Failure:
        if phase == "shutdown" and MAIN_GAVE_UP.match(text):
            phase = "start"  # no engine that ran says so: another start failed in the same log
        failure = Failure(text=text[:_MAX_TEXT], place=place, phase=phase, wrapper=wrapper)
        known = any(old.text == text and old.phase == phase for old in self.failures)
        if len(self.failures) < 100 and not known:
            self.failures.append(failure)
        return failure


def _may_end(name: str, opened: _Open) -> bool:
    """Whether an unindented ``name: text`` ends the traceback; other programs print such, too."""
    if name in _NO_EXCEPTION:
        return False
    return not opened.interrupted or _LOOKS_LIKE_EXCEPTION.search(name) is not None


def _without_text(name: str, frame: str) -> str:
    """``AssertionError`` says nothing; where it was raised does."""
    where = frame.replace('"', "")
    return f"{name} (raised at {where})" if where else name


def first_cause(evidence: Evidence) -> Failure | None:
    """The first failure that is no echo of another; an echo when nothing better was logged.

    What was logged after the request to stop is no cause of anything.
    """
    real = [failure for failure in evidence.failures if failure.phase != "shutdown"]
    causes = [failure for failure in real if not failure.wrapper]
    return next(iter(_in_words(causes) or causes or real), None)


def _in_words(causes: list[Failure]) -> list[Failure]:
    """What the same process made of a first exception that a library caught to explain it."""
    if not causes or not RAW.match(causes[0].text):
        return []
    process = causes[0].place.process
    return [f for f in causes if f.place.process == process and IN_WORDS.search(f.text)]
