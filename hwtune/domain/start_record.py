"""What one start of a server printed: facts, failures, marks."""

from __future__ import annotations

import copy
import re
from typing import cast

from hwtune.domain.check_health import start_outcome, with_start_outcome
from hwtune.domain.checking import KernelCheck
from hwtune.domain.evidence import (
    Evidence,
    KernelCount,
    Mark,
    MarkKind,
    Phase,
    Place,
    RunStatus,
    ServerStart,
    Sighting,
)
from hwtune.domain.fact_merge import FactCollector
from hwtune.domain.failures import FailureTracker, first_cause
from hwtune.domain.launch import LaunchPlan
from hwtune.domain.line_filter import LineFilter
from hwtune.domain.log_lines import LogLine
from hwtune.domain.marker_set import FactRule, Marker, MarkerMatch, MarkerSet
from hwtune.domain.starts import Progress

_MAX_FALLBACKS = 20
_MAX_MARKS = 2000
_MAX_TEXT = 400
_API_SERVER = ("APIServer", "ApiServer")
_FIELD = re.compile(r"(?:^| )(?P<key>[a-z_]+)=")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
"""What a terminal would act upon."""
_PRESENCE = ("registered", "observing", "counting", "refused", "layer bound")
_DEFAULT_RULE = FactRule(name="", title="", merge="first")


class StartRecord:
    """Takes the lines of one start in order."""

    def __init__(
        self, markers: MarkerSet, *, number: int, nonce: str | None, first: Place | None = None
    ) -> None:
        self.number = number
        self.markers = markers.markers
        self.line_filter = LineFilter(markers.markers)
        self.progress = Progress()
        self.first = first
        self._set = markers
        self._nonce = nonce
        self._facts: dict[str, FactCollector] = {}
        self._failures = FailureTracker()
        self._marks: list[Mark] = []
        self._fallbacks: list[Place] = []
        self._foreign = 0
        self._started = False
        self._stopping = False
        self._server_line: Place | None = None
        self._services: set[str] = set()
        self.last: Place | None = None
        """The last line that was taken; lines that state nothing are not."""

    def _add(self, sighting: Sighting, facts: dict[str, FactCollector]) -> None:
        rule = self._set.facts.get(sighting.fact, _DEFAULT_RULE)
        if not rule.name:
            rule = FactRule(name=sighting.fact, title=sighting.fact, merge="first")
        facts.setdefault(sighting.fact, FactCollector(rule)).add(sighting)

    def busy(self, file: str) -> bool:
        """Whether a traceback is open in the file."""
        return self._failures.busy(file)

    def continue_in(self, file: str, *, after: str) -> None:
        """A rotated log goes on in another file, an open traceback with it."""
        self._failures.rename(after, file)

    def has_mark_of(self, nonce: str) -> bool:
        """Whether the plugin spoke here under the nonce."""
        return any(mark.nonce == nonce for mark in self._marks)

    def summary(self) -> ServerStart:
        """How the start went."""
        found = self.evidence()
        version = found.value("vllm_version")
        return ServerStart(
            number=self.number,
            place=self.first,
            version=version if isinstance(version, str) else None,
            outcome=start_outcome(found),
        )

    def take(self, line: LogLine, matches: tuple[MarkerMatch, ...]) -> None:
        """Takes one line and the markers it matched."""
        place = place_of(line)
        self.last = place
        self.note_server(line)
        failures = len(self._failures.failures)
        self._failures.feed(line, place, phase=self._phase())
        if line.service and line.is_logger and matches:
            self._services.add(line.service)
        for match in matches:
            self._apply(match, line)
        if "hwtune[" in line.message and not any(m.marker.kind == "hwtune" for m in matches):
            self._foreign += 1
        if len(self._failures.failures) > failures:
            self.progress.moved += 1
            self.progress.ended = self.progress.ended or self._failures.gave_up

    def note_server(self, line: LogLine) -> None:
        """A line of an API server's process shows that the log is a server's."""
        if self._server_line is None and (line.process or "").startswith(_API_SERVER):
            self._server_line = place_of(line)

    def _apply(self, match: MarkerMatch, line: LogLine) -> None:
        marker, place = match.marker, place_of(line)
        if marker.kind == "hwtune":
            self._mark(match, line, place)
        elif marker.kind == "fatal":
            self._end(match, line, place)
        elif marker.kind == "fallback" and len(self._fallbacks) < _MAX_FALLBACKS:
            self._fallbacks.append(place)
        elif marker.kind == "request error":
            self._failures.request_errors += 1
        if marker.once:
            self._drop(marker)
        if marker.fact is not None and match.value is not None:
            sighting = Sighting(fact=marker.fact, value=match.value, rank=marker.rank, place=place)
            self._add(sighting, self._facts)
            self._note_phase(marker.fact)
        if marker.start == "server" and self.progress.server_process is None:
            self.progress.server_process = line.process or ""
        elif marker.start == "engine":
            self.progress.moved += 1

    def _end(self, match: MarkerMatch, line: LogLine, place: Place) -> None:
        """A fatal line; one about a container counts if vLLM's lines came from that container."""
        service = match.groups.get("service")
        if service is None or not self._services or service in self._services:
            text, echo = line.message.strip(), match.marker.echo
            self._failures.fatal(text, place, phase=self._phase(), echo=echo)

    def _note_phase(self, fact: str) -> None:
        if fact == "startup_complete":
            self._started, self._stopping = True, False
            self._failures.started()
        elif fact == "stopping":
            self._stopping = True
        else:
            return
        self.progress.moved += 1
        self.progress.ended = True

    def _phase(self) -> Phase:
        ran = self._started or "served" in self._facts or "engine_ready" in self._facts
        if self._stopping and ran:
            return "shutdown"
        return "serving" if self._started else "start"

    def _drop(self, marker: Marker) -> None:
        self.markers = tuple(item for item in self.markers if item is not marker)
        self.line_filter = LineFilter(self.markers)

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
        extra: tuple[Sighting, ...] = (),
        counts: tuple[KernelCount, ...] = (),
        kernel_checks: tuple[KernelCheck, ...] = (),
        has_counters: bool = False,
        status: RunStatus | None = None,
        plan: LaunchPlan | None = None,
        files: tuple[str, ...] = (),
        last_line: Place | None = None,
        notes: tuple[str, ...] = (),
    ) -> Evidence:
        """What the lines so far amount to, with what is known from elsewhere."""
        nonce = self._nonce or _registered_nonce(self._marks)
        own = tuple(mark for mark in self._marks if mark.nonce == nonce)
        facts = self._facts_with(extra)
        found = Evidence(
            facts={name: fact.fact() for name, fact in facts.items()},
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
            last_line=last_line,
            files=files,
            notes=notes,
        )
        return with_start_outcome(found)

    def _facts_with(self, extra: tuple[Sighting, ...]) -> dict[str, FactCollector]:
        facts = copy.deepcopy(self._facts)
        for sighting in extra:
            self._add(sighting, facts)
        cause = first_cause(Evidence(failures=tuple(self._failures.failures)))
        if cause is not None:
            sighting = Sighting(fact="first_error", value=cause.text, rank=0, place=cause.place)
            self._add(sighting, facts)
        if self._server_line is not None and "api_server" not in facts:
            sighting = Sighting(fact="api_server", value=True, rank=4, place=self._server_line)
            self._add(sighting, facts)
        return facts


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
