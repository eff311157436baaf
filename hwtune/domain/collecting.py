"""Lines in, evidence out: one pass, memory independent of the size of the log."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import cast

from hwtune.domain.evidence import (
    Evidence,
    Fact,
    KernelCount,
    Mark,
    MarkKind,
    Place,
    RunStatus,
    Sighting,
    Value,
)
from hwtune.domain.failures import FailureTracker, first_cause
from hwtune.domain.launch import LaunchPlan
from hwtune.domain.log_lines import LogLine, parse_line
from hwtune.domain.marker_set import FactRule, MarkerMatch, MarkerSet, match_line

_MAX_PLACES = 5
_MAX_OTHERS = 8
_MAX_MARKS = 2000
_MAX_TEXT = 400
_FIELD = re.compile(r"(?:^| )(?P<key>[a-z_]+)=")
_DEFAULT_RULE = FactRule(name="", title="", merge="first")


class _FactCollector:
    """Sightings of one fact, merged as they come."""

    def __init__(self, rule: FactRule) -> None:
        self._rule = rule
        self._seen: dict[Value, list[Sighting]] = {}
        self._count: dict[Value, int] = {}
        self._last: Sighting | None = None

    def add(self, sighting: Sighting) -> None:
        places = self._seen.setdefault(sighting.value, [])
        self._count[sighting.value] = self._count.get(sighting.value, 0) + 1
        self._last = sighting
        if len(places) < _MAX_PLACES:
            places.append(sighting)
        best = max(places, key=lambda item: item.rank)
        if sighting.rank > best.rank:
            places[-1] = sighting

    def fact(self) -> Fact:
        if self._rule.merge == "union":
            return self._union()
        top = max(item.rank for places in self._seen.values() for item in places)
        ranked = [v for v, places in self._seen.items() if any(p.rank == top for p in places)]
        value = self._pick(ranked)
        mine = sorted(self._seen[value], key=lambda item: -item.rank)
        others = [places[0] for other, places in self._seen.items() if other != value]
        return Fact(
            name=self._rule.name,
            value=value,
            evidence=tuple(item.place for item in mine),
            sightings=self._count[value],
            others=tuple(others[:_MAX_OTHERS]),
        )

    def _pick(self, ranked: list[Value]) -> Value:
        if self._rule.merge in ("min", "max"):
            choose = min if self._rule.merge == "min" else max
            return choose(ranked, key=lambda v: v if isinstance(v, (int, float)) else 0)
        if self._rule.merge == "last" and self._last is not None and self._last.value in ranked:
            return self._last.value
        return ranked[0]

    def _union(self) -> Fact:
        items: dict[str | int, None] = {}
        for value in self._seen:
            items.update(dict.fromkeys(value if isinstance(value, tuple) else (str(value),)))
        places = [place for sightings in self._seen.values() for place in sightings]
        return Fact(
            name=self._rule.name,
            value=tuple(items),
            evidence=tuple(item.place for item in places[:_MAX_PLACES]),
            sightings=sum(self._count.values()),
        )


class EvidenceCollector:
    """Feed it the raw lines of each file in order, then ask for ``evidence``."""

    def __init__(self, markers: MarkerSet, *, nonce: str | None = None) -> None:
        self._set = markers
        self._nonce = nonce
        self._facts: dict[str, _FactCollector] = {}
        self._failures = FailureTracker()
        self._marks: list[Mark] = []
        self._fallbacks: list[Place] = []
        self._foreign = 0
        self._started = False
        self._previous: LogLine | None = None
        self._last: LogLine | None = None
        self._files: list[str] = []

    def feed(self, file: str, lines: Iterable[tuple[int, str]]) -> None:
        """Reads the lines ``(number from 1, text)`` of one file."""
        self._files.append(file)
        self._previous = None
        for number, raw in lines:
            line = parse_line(file, number, raw, self._previous)
            self._previous = line
            if line.message and not line.message.isspace():
                self._last = line
            self._take(line)

    def add(self, sighting: Sighting) -> None:
        """A fact that comes from elsewhere than a log line (metrics, a run directory)."""
        rule = self._set.facts.get(sighting.fact, _DEFAULT_RULE)
        if not rule.name:
            rule = FactRule(name=sighting.fact, title=sighting.fact, merge="first")
        self._facts.setdefault(sighting.fact, _FactCollector(rule)).add(sighting)

    def _take(self, line: LogLine) -> None:
        self._failures.feed(line, place_of(line), started=self._started)
        matches = tuple(match_line(line, self._set.markers))
        if any(match.marker.kind == "ignore" for match in matches):
            return
        for match in matches:
            self._apply(match, line)
        if "hwtune[" in line.message and not any(m.marker.kind == "hwtune" for m in matches):
            self._foreign += 1

    def _apply(self, match: MarkerMatch, line: LogLine) -> None:
        marker, place = match.marker, place_of(line)
        if marker.kind == "hwtune":
            self._mark(match, line, place)
        elif marker.kind == "fatal":
            self._failures.fatal(line.message.strip(), place, started=self._started)
        elif marker.kind == "fallback" and len(self._fallbacks) < _MAX_PLACES * 4:
            self._fallbacks.append(place)
        if marker.fact is not None and match.value is not None:
            self.add(Sighting(fact=marker.fact, value=match.value, rank=marker.rank, place=place))
            self._started = self._started or marker.fact == "startup_complete"

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
        has_counters: bool = False,
        status: RunStatus | None = None,
        plan: LaunchPlan | None = None,
        notes: tuple[str, ...] = (),
    ) -> Evidence:
        """What all the lines so far amount to."""
        nonce = self._nonce or _registered_nonce(self._marks)
        own = tuple(mark for mark in self._marks if mark.nonce == nonce)
        self._state_first_error()
        return Evidence(
            facts={name: fact.fact() for name, fact in self._facts.items()},
            failures=tuple(self._failures.failures),
            fallbacks=tuple(self._fallbacks),
            request_errors=self._failures.request_errors,
            marks=own,
            counts=tuple(count for count in counts if nonce is None or count.nonce == nonce),
            has_counters=has_counters,
            nonce=nonce,
            foreign_marks=self._foreign + len(self._marks) - len(own),
            status=status,
            plan=plan,
            last_line=None if self._last is None else place_of(self._last),
            files=tuple(self._files),
            notes=notes,
        )

    def _state_first_error(self) -> None:
        cause = first_cause(Evidence(failures=tuple(self._failures.failures)))
        self._facts.pop("first_error", None)
        if cause is not None:
            self.add(Sighting(fact="first_error", value=cause.text, rank=0, place=cause.place))


def place_of(line: LogLine) -> Place:
    """Where a line stands, with its text cut to a readable length."""
    source = f"[{line.source}] " if line.source else ""
    text = f"{line.level} {source}{line.message}" if line.level else line.message
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


def _registered_nonce(marks: list[Mark]) -> str | None:
    """Without a plan, the nonce that the plugin itself announced when it was loaded."""
    announced = {
        mark.nonce for mark in marks if mark.kind in ("registered", "observing", "refused")
    }
    return announced.pop() if len(announced) == 1 else None
