"""Profiler traces (Chrome trace JSON of torch.profiler) -> events, in bounded memory."""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from hwtune.domain.bucket_compare import ArmBuckets, join_ranks
from hwtune.domain.buckets import CATEGORIES, BucketRule, Buckets, TraceEvent, attribute
from hwtune.domain.errors import InputError
from hwtune.io.logs import GZIP_MAGIC
from hwtune.io.marker_sets import TRACE_BUCKETS, read_table

_CHUNK_CHARACTERS = 1 << 20
_LARGEST_VALUE = 64 << 20
"""Characters of one event or header value; more is damage, not a trace."""
_SPACE = re.compile(r"[\s,]*")
_PATTERNS = ("*.trace.json", "*.trace.json.gz")
_FRONTEND = ".async_llm."
"""The API server's own trace (vllm/v1/engine/async_llm.py): no rank, and no step runs in it."""


def load_bucket_rules() -> tuple[BucketRule, ...]:
    """The packaged rules, in their order.

    Raises:
        InputError: a rule is malformed; names it.
    """
    rules = []
    for entry in read_table(TRACE_BUCKETS)["rule"]:
        try:
            rules.append(
                BucketRule(
                    bucket=entry["bucket"],
                    pattern=re.compile(entry["pattern"]),
                    source=entry["source"],
                    examples=tuple(entry["examples"]),
                    counter_examples=tuple(entry["counter_examples"]),
                )
            )
        except (KeyError, TypeError, re.error) as error:
            message = f"markers/{TRACE_BUCKETS}: rule {len(rules) + 1}: {error!r}"
            raise InputError(message) from None
    return tuple(rules)


def read_arm(path: Path, name: str) -> ArmBuckets:
    """One server's buckets: a trace file, or the directory that vLLM's profiler wrote.

    Raises:
        InputError: missing, damaged, no operator or kernel in it, or several profiles in one place.
    """
    rules = load_bucket_rules()
    ranks: dict[int, Path] = {}
    found: list[Buckets] = []
    for file in _files(path):
        trace = Trace()
        buckets = attribute(trace.events(file), rules)
        if buckets is None:
            continue
        rank = trace.rank if trace.rank is not None else len(ranks)
        if rank in ranks:
            message = (
                f"{path}: {ranks[rank].name} and {file.name} are both of rank {rank}:"
                " name one file, or profile into an empty directory"
            )
            raise InputError(message)
        ranks[rank] = file
        found.append(buckets)
        if buckets.clock != found[0].clock:
            message = (
                f"{path}: {file.name} has times of the {buckets.clock}, those before it of the"
                f" {found[0].clock}: profile all ranks with the same activities"
            )
            raise InputError(message)
    if not found:
        message = (
            f"{path}: no operator and no kernel in it; profile between /start_profile and"
            " /stop_profile while requests run, with --profiler-config.profiler torch"
        )
        raise InputError(message)
    return join_ranks(name, found)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted({file for pattern in _PATTERNS for file in path.glob(pattern)})
    files = [file for file in files if _FRONTEND not in file.name]
    if not files:
        message = f"{path}: no *.trace.json or *.trace.json.gz in this directory"
        raise InputError(message)
    return files


@dataclass(slots=True)
class Trace:
    """One trace file being read; ``rank`` is known once the events are through."""

    rank: int | None = None
    _decoder: json.JSONDecoder = field(default_factory=json.JSONDecoder)

    def events(self, path: Path) -> Iterator[TraceEvent]:
        """The complete events of the categories that attribution needs.

        Raises:
            InputError: unreadable, not a trace, or cut off before its end.
        """
        try:
            with path.open("rb") as raw:
                zipped = raw.peek(2).startswith(GZIP_MAGIC)
                source = cast("BinaryIO", gzip.GzipFile(fileobj=raw) if zipped else raw)
                text = io.TextIOWrapper(source, encoding="utf-8", errors="replace")
                yield from self._parsed(_Text(text))
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or str(error) or "cut off before its end"
            message = f"{path}: cannot read the trace: {reason}"
            raise InputError(message) from None
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            message = f"{path}: not a whole trace of torch.profiler: {error}"
            raise InputError(message) from None

    def _parsed(self, text: _Text) -> Iterator[TraceEvent]:
        if text.next_is("["):
            yield from self._array(text)
            return
        text.take("{")
        while not text.next_is("}"):
            key = text.value(self._decoder)
            text.take(":")
            if key == "traceEvents":
                yield from self._array(text)
            else:
                self._note(key, text.value(self._decoder))

    def _array(self, text: _Text) -> Iterator[TraceEvent]:
        text.take("[")
        while not text.next_is("]"):
            event = _event(text.value(self._decoder))
            if event is not None:
                yield event
        text.take("]")

    def _note(self, key: object, value: object) -> None:
        if key == "distributedInfo" and isinstance(value, dict):
            rank = value.get("rank")
            self.rank = rank if isinstance(rank, int) else None


def _event(value: object) -> TraceEvent | None:
    if not isinstance(value, dict):
        message = "an event is not an object"
        raise TypeError(message)
    data = cast("dict[str, Any]", value)
    if data.get("ph") != "X" or data.get("cat") not in CATEGORIES:
        return None
    try:
        return TraceEvent(
            name=str(data["name"]),
            category=data["cat"],
            track=f"{data['pid']}/{data['tid']}",
            start_us=_finite(data["ts"]),
            duration_us=max(0.0, _finite(data["dur"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        message = f"an event lacks what every event has: {error!r}"
        raise ValueError(message) from None


def _finite(value: str | float) -> float:
    number = float(value)
    if not math.isfinite(number):
        message = f"{value} is no time"
        raise ValueError(message)
    return number


class _Text:
    """A JSON text read piece by piece."""

    def __init__(self, source: IO[str]) -> None:
        self._source = source
        self._buffer = ""
        self._at = 0
        self._ended = False

    def next_is(self, character: str) -> bool:
        """Whether the next character that is no space or comma is this one."""
        while True:
            match = _SPACE.match(self._buffer, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._buffer):
                return self._buffer[self._at] == character
            if not self._more():
                message = "it ends in the middle"
                raise ValueError(message)

    def take(self, character: str) -> None:
        """Skips one character that must be there."""
        if not self.next_is(character):
            message = f"{character!r} expected, {self._buffer[self._at]!r} found"
            raise ValueError(message)
        self._at += 1

    def value(self, decoder: json.JSONDecoder) -> object:
        """The next JSON value."""
        self.next_is("")
        while True:
            try:
                value, end = decoder.raw_decode(self._buffer, self._at)
            except json.JSONDecodeError as error:
                if len(self._buffer) - self._at > _LARGEST_VALUE or not self._more():
                    raise ValueError(error.msg) from None
                continue
            if end == len(self._buffer) and not self._ended and self._more():
                continue
            self._at = end
            return value

    def _more(self) -> bool:
        block = self._source.read(_CHUNK_CHARACTERS)
        self._ended = not block
        self._buffer = self._buffer[self._at :] + block
        self._at = 0
        return bool(block)
