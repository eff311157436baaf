"""Lines in, evidence out: one pass, memory independent of the size of the log."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import cast

from hwtune.domain.check_health import with_start_outcome
from hwtune.domain.checking import KernelCheck
from hwtune.domain.evidence import (
    Evidence,
    KernelCount,
    Mark,
    MarkKind,
    Phase,
    Place,
    RunStatus,
    Sighting,
)
from hwtune.domain.fact_merge import FactCollector
from hwtune.domain.failures import FailureTracker, first_cause
from hwtune.domain.launch import LaunchPlan
from hwtune.domain.line_filter import AFTER, BEFORE, HEADER_END, LineFilter
from hwtune.domain.line_prefixes import LearntPrefixes
from hwtune.domain.log_lines import LogLine, parse_line, parse_lines, split_progress
from hwtune.domain.marker_set import FactRule, Marker, MarkerMatch, MarkerSet, match_line

_MAX_FALLBACKS = 20
_MAX_MARKS = 2000
_MAX_TEXT = 400
_API_SERVER = ("APIServer", "ApiServer")
_TEACHING_LINES = 64
_MAX_LINE_BYTES = 1 << 18
"""vLLM's longest line (its whole configuration) is some 20 kB; what lies beyond is cut."""
_FIELD = re.compile(r"(?:^| )(?P<key>[a-z_]+)=")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
"""What a terminal would act upon."""
_PRESENCE = ("registered", "observing", "counting", "refused", "layer bound")
_DEFAULT_RULE = FactRule(name="", title="", merge="first")


class EvidenceCollector:
    """Feed it the raw lines of each file in order, then ask for ``evidence``."""

    def __init__(self, markers: MarkerSet, *, nonce: str | None = None) -> None:
        self._set = markers
        self._markers = markers.markers
        self._nonce = nonce
        self._facts: dict[str, FactCollector] = {}
        self._failures = FailureTracker()
        self._marks: list[Mark] = []
        self._fallbacks: list[Place] = []
        self._foreign = 0
        self._started = False
        self._stopping = False
        self._previous: LogLine | None = None
        self._before: bytes | None = None
        self._prefixes = LearntPrefixes()
        self._server_line: Place | None = None
        self._last: tuple[int, str] | None = None
        self._filter = LineFilter(markers.markers)
        self._files: list[str] = []

    def feed(self, file: str, lines: Iterable[tuple[int, str]]) -> None:
        """Reads the lines ``(number from 1, text)`` of one file, each of them."""
        self._open_file(file)
        for number, text in lines:
            self._read(file, number, text)
            if text and not text.isspace():
                self._last = (number, text)

    def feed_blocks(self, file: str, blocks: Iterable[tuple[int, bytes]]) -> None:
        """Reads one file as blocks ``(number of the first line, bytes of whole lines)``.

        Lines that can state nothing are passed over without being read.
        """
        self._open_file(file)
        for first, block in blocks:
            lines = block.split(b"\n")
            if first == 1:
                self._teach(file, lines[:_TEACHING_LINES])
            self._feed_lines(file, first, lines, quotes=b"hwtune[" in block)
            last = len(lines) - 1
            while last >= 0 and not lines[last].strip():
                last -= 1
            if last >= 0:
                self._last = (first + last, _text(lines[last]))

    def _teach(self, file: str, lines: list[bytes]) -> None:
        """Headers show the collector's prefix, also those of lines that state nothing."""
        for number, raw in enumerate(lines, start=1):
            self._note_server(parse_line(file, number, _text(raw), prefixes=self._prefixes))

    def _feed_lines(self, file: str, first: int, lines: list[bytes], *, quotes: bool) -> None:
        """The hot loop: one search, one slice and one look-up for a line of a known dull kind."""
        dull, busy = self._filter.dull, self._failures.busy
        for index, raw in enumerate(lines):
            end = raw.find(HEADER_END)
            key = raw[end - BEFORE : end + AFTER] if end >= BEFORE else b""
            if key in dull and not busy and not (quotes and b"hwtune[" in raw):
                continue
            if not busy and not self._filter.matters(raw, key):
                continue
            if index:
                self._previous = None
                self._before = lines[index - 1]
            self._read_pieces(file, first + index, _text(raw))
            self._before = raw
            dull, busy = self._filter.dull, self._failures.busy

    def _read_pieces(self, file: str, number: int, text: str) -> None:
        for piece in split_progress(text):
            self._read(file, number, piece)

    def _read(self, file: str, number: int, text: str) -> None:
        if self._previous is None and self._before is not None:
            before = _text(self._before)
            self._previous = parse_line(file, number - 1, before, prefixes=self._prefixes)
        lines = parse_lines(file, number, text, self._previous, self._prefixes)
        self._previous = lines[0]
        for line in lines:
            self._take(line)

    def _open_file(self, file: str) -> None:
        self._files.append(file)
        self._previous, self._before = None, None
        self._prefixes = LearntPrefixes()

    def add(self, sighting: Sighting) -> None:
        """A fact that comes from elsewhere than a log line (metrics, a run directory)."""
        rule = self._set.facts.get(sighting.fact, _DEFAULT_RULE)
        if not rule.name:
            rule = FactRule(name=sighting.fact, title=sighting.fact, merge="first")
        self._facts.setdefault(sighting.fact, FactCollector(rule)).add(sighting)

    def _take(self, line: LogLine) -> None:
        self._note_server(line)
        self._failures.feed(line, place_of(line), phase=self._phase())
        matches = tuple(match_line(line, self._markers))
        for match in matches:
            self._apply(match, line)
        if "hwtune[" in line.message and not any(m.marker.kind == "hwtune" for m in matches):
            self._foreign += 1

    def _note_server(self, line: LogLine) -> None:
        """A line of an API server's process shows that the log is a server's."""
        if self._server_line is None and (line.process or "").startswith(_API_SERVER):
            self._server_line = place_of(line)

    def _apply(self, match: MarkerMatch, line: LogLine) -> None:
        marker, place = match.marker, place_of(line)
        if marker.kind == "hwtune":
            self._mark(match, line, place)
        elif marker.kind == "fatal":
            self._failures.fatal(line.message.strip(), place, phase=self._phase())
        elif marker.kind == "fallback" and len(self._fallbacks) < _MAX_FALLBACKS:
            self._fallbacks.append(place)
        elif marker.kind == "request error":
            self._failures.request_errors += 1
        if marker.once:
            self._drop(marker)
        if marker.fact is not None and match.value is not None:
            self.add(Sighting(fact=marker.fact, value=match.value, rank=marker.rank, place=place))
            self._note_phase(marker.fact)

    def _note_phase(self, fact: str) -> None:
        """A server that starts again in the same log is not stopping any more."""
        if fact == "stopping":
            self._stopping = True
        elif fact in ("api_server", "startup_complete"):
            self._started = (self._started and not self._stopping) or fact == "startup_complete"
            self._stopping = False

    def _phase(self) -> Phase:
        ran = self._started or "served" in self._facts
        if self._stopping and ran:
            return "shutdown"
        return "serving" if self._started else "start"

    def _drop(self, marker: Marker) -> None:
        self._markers = tuple(item for item in self._markers if item is not marker)
        self._filter = LineFilter(self._markers)

    def _last_line(self) -> Place | None:
        if self._last is None:
            return None
        number, text = self._last
        *_, piece = split_progress(text)
        return place_of(parse_line(self._files[-1], number, piece, prefixes=self._prefixes))

    def _mark(self, match: MarkerMatch, line: LogLine, place: Place) -> None:
        nonce = match.groups.get("nonce", "")
        if line.continued and self._is_quoted(line):
            self._foreign += 1
            return
        if len(self._marks) < _MAX_MARKS:
            kind = cast("MarkKind", match.groups["kind"])
            fields = parse_fields(match.groups.get("fields", ""))
            self._marks.append(Mark(kind=kind, nonce=nonce, fields=fields, place=place))

    def _is_quoted(self, line: LogLine) -> bool:
        """A later line of a message that did not begin as a marker of ours quotes someone."""
        return not any(
            mark.place.file == line.file and mark.place.line == line.number - 1
            for mark in self._marks[-1:]
        )

    def evidence(
        self,
        *,
        counts: tuple[KernelCount, ...] = (),
        kernel_checks: tuple[KernelCheck, ...] = (),
        has_counters: bool = False,
        status: RunStatus | None = None,
        plan: LaunchPlan | None = None,
        notes: tuple[str, ...] = (),
    ) -> Evidence:
        """What all the lines so far amount to."""
        nonce = self._nonce or _registered_nonce(self._marks)
        own = tuple(mark for mark in self._marks if mark.nonce == nonce)
        self._state_first_error()
        if self._server_line is not None and "api_server" not in self._facts:
            self.add(Sighting(fact="api_server", value=True, rank=4, place=self._server_line))
        found = Evidence(
            facts={name: fact.fact() for name, fact in self._facts.items()},
            failures=tuple(self._failures.failures),
            fallbacks=tuple(self._fallbacks),
            request_errors=self._failures.request_errors,
            marks=own,
            counts=tuple(count for count in counts if nonce is None or count.nonce == nonce),
            kernel_checks=tuple(c for c in kernel_checks if nonce is None or c.nonce == nonce),
            has_counters=has_counters,
            nonce=nonce,
            nonce_verified=bool(self._nonce),
            other_runs=_other_runs(self._marks, self._nonce),
            foreign_marks=self._foreign + len(self._marks) - len(own),
            status=status,
            plan=plan,
            last_line=self._last_line(),
            files=tuple(self._files),
            notes=notes,
        )
        return with_start_outcome(found)

    def _state_first_error(self) -> None:
        cause = first_cause(Evidence(failures=tuple(self._failures.failures)))
        self._facts.pop("first_error", None)
        if cause is not None:
            self.add(Sighting(fact="first_error", value=cause.text, rank=0, place=cause.place))


def _text(raw: bytes) -> str:
    return raw[:_MAX_LINE_BYTES].decode("utf-8", errors="replace")


def place_of(line: LogLine) -> Place:
    """Where a line stands, with its text cut to a readable length."""
    source = f"[{line.source}] " if line.source else ""
    text = f"{line.level} {source}{line.message}" if line.level else line.message
    text = _CONTROL.sub("\ufffd", text[: _MAX_TEXT + 1].rstrip("\r"))
    return Place(
        file=line.file,
        line=line.number,
        process=line.process,
        time=line.time,
        text=text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…",
    )


def parse_fields(text: str) -> dict[str, str]:
    """``a=1 b=two words c=x`` -> a mapping; a value reaches to the next `` key=``."""
    matches = list(_FIELD.finditer(text))
    ends = [match.start() for match in matches[1:]] + [len(text)]
    return {m["key"]: text[m.end() : end].strip() for m, end in zip(matches, ends, strict=True)}


def _other_runs(marks: list[Mark], nonce: str | None) -> tuple[str, ...]:
    """Whose plugin speaks in the files in which the run's own never does."""
    if not nonce:
        return ()
    own = {mark.place.file for mark in marks if mark.nonce == nonce}
    others = (mark for mark in marks if mark.place.file not in own and mark.kind in _PRESENCE)
    return tuple(dict.fromkeys(mark.nonce for mark in others))


def _registered_nonce(marks: list[Mark]) -> str | None:
    """Without a plan, the nonce that the plugin itself announced when it was loaded."""
    announced = {
        mark.nonce for mark in marks if mark.kind in ("registered", "observing", "refused")
    }
    return announced.pop() if len(announced) == 1 else None
