"""Lines in, evidence out: one pass, memory independent of the size of the log."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from hwtune.domain.checking import KernelCheck
from hwtune.domain.evidence import Evidence, KernelCount, Place, RunStatus, ServerStart, Sighting
from hwtune.domain.file_reader import FileReader
from hwtune.domain.launch import LaunchPlan
from hwtune.domain.line_filter import LineFilter
from hwtune.domain.log_lines import LogLine
from hwtune.domain.marker_set import MarkerSet, match_line
from hwtune.domain.start_record import StartRecord, parse_fields, place_of
from hwtune.domain.starts import StartWatch

__all__ = ["Blocks", "EvidenceCollector", "parse_fields", "place_of"]

_MAX_STARTS = 200
"""Starts that are listed; a crash loop may have any number."""
_LAST = "~"
"""Sorts behind every clock: a file without times goes on where the one before it ended."""
Blocks = Iterable[tuple[int, bytes]]
"""``(number of the first line, bytes of whole lines)``."""


class EvidenceCollector:
    """Feed it the lines of a server's files, then ask for ``evidence``.

    Args:
        markers: what lines mean.
        nonce: of the plan, when it is known.
        start: number of the start to judge, from 1; None judges the plan's, else the last.
    """

    def __init__(
        self, markers: MarkerSet, *, nonce: str | None = None, start: int | None = None
    ) -> None:
        self._set = markers
        self._nonce = nonce
        self._wanted = start
        self._current = StartRecord(markers, number=1, nonce=nonce)
        self._kept: StartRecord | None = None
        self._over: list[ServerStart] = []
        self._watch = StartWatch()
        self._extra: list[Sighting] = []
        self._readers: list[FileReader] = []
        self._latest: FileReader | None = None

    @property
    def line_filter(self) -> LineFilter:
        """Which lines can state anything."""
        return self._current.line_filter

    def busy(self, file: str) -> bool:
        """Whether every line of the file counts."""
        return self._current.busy(file)

    def glance(self, line: LogLine) -> None:
        """Looks at one of the first lines of a file."""
        self._current.note_server(line)

    def open(self, file: str) -> FileReader:
        """A reader to feed a file through piece by piece."""
        reader = FileReader(file, self)
        self._readers.append(reader)
        return reader

    def take(self, reader: FileReader, lines: Iterable[LogLine]) -> None:
        """Takes what a reader of ``open`` gives."""
        self._latest = reader
        for line in lines:
            self._take(line)

    def feed(self, file: str, lines: Iterable[tuple[int, str]]) -> None:
        """Reads the lines ``(number from 1, text)`` of one file, each of them."""
        reader = self.open(file)
        self.take(reader, reader.read_all(lines))

    def feed_files(self, files: Sequence[tuple[str, Blocks]]) -> None:
        """Reads the files of one server in the order of their times.

        Lines that can state nothing are passed over without being read.
        """
        streams = [_Stream(self.open(file), blocks, i) for i, (file, blocks) in enumerate(files)]
        ended: str | None = None
        while streams:
            stream = min(streams, key=lambda item: item.order)
            if stream.fresh and ended is not None:
                self._current.continue_in(stream.reader.file, after=ended)
            line = stream.pull(min((s.order for s in streams if s is not stream), default=None))
            if line is not None:
                self._latest = stream.reader
                self._take(line)
            elif stream.exhausted:
                ended = stream.reader.file
                streams.remove(stream)
        ends = [reader for reader in self._readers if reader.last_line() is not None]
        self._latest = max(ends, key=FileReader.end_clock, default=self._latest)

    def add(self, sighting: Sighting) -> None:
        """A fact that comes from elsewhere than a log line (metrics, a run directory)."""
        self._extra.append(sighting)

    def _take(self, line: LogLine) -> None:
        matches = tuple(match_line(line, self._current.markers))
        kinds = [match.marker.start for match in matches if match.marker.start]
        begun = self._watch.see(line, kinds, self._current.progress)
        if begun is None:
            self._current.take(line, matches)
            return
        self._begin(place_of(begun[0]))
        for known in begun:
            self._current.take(known, tuple(match_line(known, self._current.markers)))

    def _begin(self, first: Place) -> None:
        over = self._current
        if len(self._over) < _MAX_STARTS:
            self._over.append(over.summary())
        if self._is_wanted(over):
            self._kept = over
        self._current = StartRecord(
            self._set, number=over.number + 1, nonce=self._nonce, first=first
        )

    def _is_wanted(self, record: StartRecord) -> bool:
        if self._wanted is not None:
            return record.number == self._wanted
        return self._nonce is not None and record.has_mark_of(self._nonce)

    def _judged(self) -> StartRecord:
        if self._kept is None or self._is_wanted(self._current):
            return self._current
        return self._kept

    @property
    def number_of_starts(self) -> int:
        """Starts seen so far, the one under way included."""
        return self._current.number

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
        judged = self._judged()
        found = judged.evidence(
            extra=tuple(self._extra),
            counts=counts,
            kernel_checks=kernel_checks,
            has_counters=has_counters,
            status=status,
            plan=plan,
            files=tuple(reader.file for reader in self._readers),
            last_line=self._last_line() if judged is self._current else judged.last,
            notes=notes,
        )
        if not self._over:
            return found
        starts = (*self._over, self._current.summary())
        return dataclasses.replace(found, starts=starts, judged_start=judged.number)

    def _last_line(self) -> Place | None:
        line = None if self._latest is None else self._latest.last_line()
        return None if line is None else place_of(line)


class _Stream:
    """One file among several: its lines in order, each no earlier than the one before."""

    def __init__(self, reader: FileReader, blocks: Blocks, index: int) -> None:
        self.reader = reader
        self.fresh = True
        """Whether no line was asked for yet."""
        self.exhausted = False
        self._index = index
        self._lines = reader.read_blocks(reader.taught(blocks))
        self._clock = reader.clock or (_LAST if index else "")
        self._held: LogLine | None = None

    @property
    def order(self) -> tuple[str, int]:
        """Earliest place of the next line; in the same second files keep their order."""
        return self._clock, self._index

    def pull(self, before: tuple[str, int] | None) -> LogLine | None:
        """The next line, unless it comes only after what stands at ``before`` elsewhere.

        A line is looked for only when all earlier ones of every file were taken, for which lines
        matter depends on them.
        """
        self.fresh = False
        if self._held is None:
            self._held = next(self._lines, None)
            self.exhausted = self._held is None
            self._clock = max(self._clock, self.reader.clock)
            if self._held is None or (before is not None and self.order > before):
                return None
        line, self._held = self._held, None
        return line
