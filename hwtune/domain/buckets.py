"""Where the time of a profiled server went: every operator or kernel of a trace in one bucket.

The scope is "bucket": sums of a profiler's trace, whose own cost is part of every figure. It is
neither the time of a kernel alone nor what a client sees, and is never multiplied with either.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

OTHER = "other"
BETWEEN = "before the first step"
Clock = Literal["device", "cpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRule:
    """Names that belong to one bucket. Rules are tried in order; the first match wins."""

    bucket: str
    pattern: re.Pattern[str]
    source: str
    """Where the names come from."""
    examples: tuple[str, ...]
    counter_examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One complete event of a trace."""

    name: str
    category: str
    """As the profiler names it: ``cpu_op``, ``kernel``, ``gpu_memcpy``, ``user_annotation`` ..."""
    track: str
    """Process and thread, or device and stream."""
    start_us: float
    duration_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the profiled steps computed, from vLLM's own step annotations."""

    steps: int
    prefill_requests: int
    """Summed over steps: a prompt in three chunks counts three times."""
    prefill_tokens: int
    decode_requests: int
    decode_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketTime:
    """One bucket in one phase."""

    bucket: str
    phase: str
    """``prefill`` and ``decode`` steps have rows of that kind only, ``mixed`` ones both."""
    time_us: float
    """Self time on the CPU; on a device the sum of its kernels over all streams."""
    calls: int
    top: tuple[tuple[str, float], ...]
    """The costliest names, with their time in microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """One rank's trace, attributed."""

    clock: Clock
    rows: tuple[BucketTime, ...]
    work: Work | None
    """None when the trace holds no step annotations."""
    work_by_phase: Mapping[str, Work] = field(default_factory=dict)
    """The same apart for each phase that had a step."""

    @property
    def total_us(self) -> float:
        """Sum over all rows, in microseconds."""
        return sum(row.time_us for row in self.rows)


_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_MEMORY = {"gpu_memcpy": "memory copies", "gpu_memset": "memory copies"}
_STEP_MARKS = {"device": ("gpu_user_annotation", "user_annotation"), "cpu": ("user_annotation",)}
_STEP = re.compile(
    r"execute_(?:\d+_)?context_(\d+)\((?:sq)?(\d+)[^)]*\)_generation_(\d+)\((?:sq)?(\d+)[^)]*\)"
)
"""vllm/v1/worker/gpu_worker.py, annotate_profile: plain and with detailed_trace_annotation."""
CATEGORIES = _DEVICE | {"cpu_op", "user_annotation", "gpu_user_annotation"}
"""The events that attribution needs; the rest of a trace (Python stacks above all) is not kept."""
_TOP = 5


@dataclass(frozen=True, slots=True)
class _Step:
    start_us: float
    phase: str
    counts: tuple[int, int, int, int]


class _Classifier:
    """Name -> bucket, each name looked at once."""

    def __init__(self, rules: Sequence[BucketRule]) -> None:
        self._rules = rules
        self._known: dict[str, str | None] = {}

    def bucket(self, name: str) -> str | None:
        """None when no rule knows the name."""
        if name not in self._known:
            found = (rule.bucket for rule in self._rules if rule.pattern.search(name))
            self._known[name] = next(found, None)
        return self._known[name]


def attribute(events: Iterable[TraceEvent], rules: Sequence[BucketRule]) -> Buckets | None:
    """The trace's time by bucket and phase, or None when it holds no operator and no kernel.

    A trace with device kernels is judged by them; one without, by the CPU operators' self time,
    which belongs to the outermost operator that a rule knows: a matrix product inside an attention
    operator is attention. A step's phase lasts until the next step begins, so that sampling
    counts to the step whose tokens it draws.
    """
    kept = [event for event in events if event.category in CATEGORIES]
    device = [event for event in kept if event.category in _DEVICE]
    operators = [event for event in kept if event.category == "cpu_op"]
    if not device and not operators:
        return None
    clock: Clock = "device" if device else "cpu"
    steps = _steps(kept, _STEP_MARKS[clock])
    classifier = _Classifier(rules)
    pieces = _kernels(device, classifier) if device else _self_times(operators, classifier)
    return Buckets(
        clock=clock,
        rows=_summed(pieces, steps),
        work=_work(steps),
        work_by_phase={
            phase: work
            for phase in sorted({step.phase for step in steps})
            if (work := _work([step for step in steps if step.phase == phase])) is not None
        },
    )


def _steps(events: Sequence[TraceEvent], marks: Sequence[str]) -> list[_Step]:
    """In order of time; from the first kind of annotation that the trace has.

    Of several streams the one with most: the profiler repeats a step's annotation on every stream
    that ran a kernel of it.
    """
    for mark in marks:
        tracks: dict[str, list[_Step]] = defaultdict(list)
        for event in events:
            if event.category == mark and (match := _STEP.match(event.name)):
                tracks[event.track].append(_step(event.start_us, match))
        if tracks:
            most: list[_Step] = max(tracks.values(), key=len)
            return sorted(most, key=lambda step: step.start_us)
    return []


def _step(start_us: float, match: re.Match[str]) -> _Step:
    prefills, prefill_tokens, decodes, decode_tokens = map(int, match.groups())
    phase = {(True, False): "prefill", (False, True): "decode", (True, True): "mixed"}.get(
        (prefills > 0, decodes > 0), "empty"
    )
    return _Step(start_us, phase, (prefills, prefill_tokens, decodes, decode_tokens))


def _work(steps: Sequence[_Step]) -> Work | None:
    if not steps:
        return None
    sums = [sum(column) for column in zip(*(step.counts for step in steps), strict=True)]
    return Work(
        steps=sum(step.phase != "empty" for step in steps),
        prefill_requests=sums[0],
        prefill_tokens=sums[1],
        decode_requests=sums[2],
        decode_tokens=sums[3],
    )


_Piece = tuple[str, str, float, float, int]
"""Bucket, name, start and time in microseconds, and 1 unless it is part of another call."""


def _kernels(events: Sequence[TraceEvent], classifier: _Classifier) -> Iterator[_Piece]:
    for event in events:
        bucket = _MEMORY.get(event.category) or classifier.bucket(event.name) or OTHER
        yield bucket, event.name, event.start_us, event.duration_us, 1


def _self_times(events: Sequence[TraceEvent], classifier: _Classifier) -> Iterator[_Piece]:
    tracks: dict[str, list[TraceEvent]] = defaultdict(list)
    for event in events:
        tracks[event.track].append(event)
    for track in tracks.values():
        track.sort(key=lambda event: (event.start_us, -event.duration_us))
        yield from _track_self_times(track, classifier)


@dataclass(slots=True)
class _Open:
    """An operator that has begun: its end, what it is charged to, and what its children took."""

    event: TraceEvent
    end_us: float
    owner: tuple[str, str] | None
    """Bucket and name of the outermost known operator, itself included."""
    inside: bool
    """Whether that operator is another one, around this."""
    children_us: float = 0.0


def _track_self_times(events: Sequence[TraceEvent], classifier: _Classifier) -> Iterator[_Piece]:
    stack: list[_Open] = []
    for event in events:
        end = event.start_us + event.duration_us
        while stack and not _holds(stack[-1], event.start_us, end):
            yield _closed(stack, event.start_us)
        owner, inside = None, False
        if stack:
            owner = stack[-1].owner
            inside = owner is not None
            end = min(end, stack[-1].end_us)
        if owner is None and (bucket := classifier.bucket(event.name)):
            owner = (bucket, event.name)
        stack.append(_Open(event, end, owner, inside))
    while stack:
        yield _closed(stack, math.inf)


def _holds(item: _Open, start_us: float, end_us: float) -> bool:
    """Whether an operator is inside another: at least half of it, as clocks are rounded."""
    return start_us < item.end_us and (start_us + end_us) / 2 <= item.end_us


def _closed(stack: list[_Open], now_us: float) -> _Piece:
    """Ends the innermost operator, at the latest when the next begins: no time counts twice."""
    item = stack.pop()
    bucket, name = item.owner or (OTHER, item.event.name)
    duration = min(item.end_us, now_us) - item.event.start_us
    if stack:
        stack[-1].children_us += duration
    own = max(0.0, duration - item.children_us)
    return bucket, name, item.event.start_us, own, int(not item.inside)


def _summed(pieces: Iterable[_Piece], steps: Sequence[_Step]) -> tuple[BucketTime, ...]:
    starts = [step.start_us for step in steps]
    times: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    calls: dict[tuple[str, str], int] = defaultdict(int)
    for bucket, name, start, time, call in pieces:
        index = bisect_right(starts, start) - 1
        key = (bucket, steps[index].phase if index >= 0 else BETWEEN if steps else "all")
        times[key][name] += time
        calls[key] += call
    return tuple(
        BucketTime(
            bucket=bucket,
            phase=phase,
            time_us=sum(names.values()),
            calls=calls[bucket, phase],
            top=_top(names),
        )
        for (bucket, phase), names in sorted(times.items(), key=lambda item: item[0])
    )


def _top(names: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(names.items(), key=lambda item: (-item[1], item[0]))[:_TOP])
