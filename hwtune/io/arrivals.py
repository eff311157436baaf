"""Public traces of real arrivals -> requests with times.

Known forms: Azure's LLM inference CSV (``TIMESTAMP,ContextTokens,GeneratedTokens``), BurstGPT's
CSV (``Timestamp`` in seconds, ``Request tokens``, ``Response tokens``), and JSON lines with
``timestamp``, ``input_length``, ``output_length`` and ``hash_ids``: Mooncake's (milliseconds, 512
tokens per id) and Qwen-Bailian's (seconds, 16 tokens per id; it also has ``chat_id``).
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Final, TextIO

from hwtune.domain.errors import InputError
from hwtune.domain.json_text import parse_object
from hwtune.domain.scheduler.workloads import WorkItem
from hwtune.domain.units import LARGEST_SIZE

MOONCAKE_BLOCK_TOKENS: Final = 512
"""Tokens per entry of hash_ids (Mooncake's trace description)."""
BAILIAN_BLOCK_TOKENS: Final = 16
"""Tokens per entry of hash_ids (Qwen-Bailian's trace description)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A trace, read."""

    items: tuple[WorkItem, ...]
    """In the order of time; the first is at 0."""
    form: str
    skipped: int
    """Lines without a prompt or an answer (failed requests)."""


def read_trace(path: Path, limit: int | None = None) -> Trace:
    """The first ``limit`` requests of a trace file.

    Args:
        path: ``-`` is standard input; a name that ends in ``.gz`` is unpacked.

    Raises:
        InputError: the file cannot be read, or has none of the known forms; names the line.
    """
    try:
        with _opened(path) as file:
            form, lines = _form(path, file)
            found: list[WorkItem] = []
            skipped = 0
            for arrival in lines:
                if arrival.prompt_tokens < 1 or arrival.output_tokens < 1:
                    skipped += 1
                else:
                    found.append(arrival)
                if len(found) == limit:
                    break
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        message = f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}"
        raise InputError(message) from None
    if not found:
        message = f"{path}: holds no request with a prompt and an answer"
        raise InputError(message)
    return Trace(items=_from_zero(found), form=form, skipped=skipped)


def _opened(path: Path) -> TextIO:
    """The text of a file, of a gzipped one, or of standard input."""
    if str(path) == "-":
        return io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig", newline="")
    file = path.expanduser()
    if file.suffix == ".gz":
        return gzip.open(file, "rt", encoding="utf-8-sig", newline="")
    return file.open(encoding="utf-8-sig", newline="")


def _form(path: Path, file: TextIO) -> tuple[str, Iterator[WorkItem]]:
    first = file.readline()
    lines = chain([first], file)
    if first.lstrip().startswith("{"):
        return "JSON lines", _json_lines(path, lines)
    header = [name.strip().lower() for name in next(csv.reader([first]), [])]
    for form in _CSV_FORMS:
        if {form.time, form.prompt, form.output} <= set(header):
            return form.name, _csv_lines(path, file, header, form)
    known = "; ".join(f"{form.time}, {form.prompt}, {form.output}" for form in _CSV_FORMS)
    message = f"{path}: line 1 is neither JSON nor a known header ({known})"
    raise InputError(message)


def _seconds(text: str) -> float:
    return 1000.0 * float(text)


def _clock_time(text: str) -> float:
    """Milliseconds of ``2023-11-16 18:17:03.9799600``; Python reads six digits at most."""
    cut = re.sub(r"(\.\d{6})\d+", r"\1", text.strip())
    return 1000.0 * datetime.fromisoformat(cut).timestamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class _CsvForm:
    """Columns of a CSV trace, in lower case."""

    name: str
    time: str
    prompt: str
    output: str
    milliseconds: Callable[[str], float]


_CSV_FORMS: Final = (
    _CsvForm(
        name="Azure CSV",
        time="timestamp",
        prompt="contexttokens",
        output="generatedtokens",
        milliseconds=_clock_time,
    ),
    _CsvForm(
        name="BurstGPT CSV",
        time="timestamp",
        prompt="request tokens",
        output="response tokens",
        milliseconds=_seconds,
    ),
    _CsvForm(
        name="plain CSV",
        time="arrival_ms",
        prompt="prompt_tokens",
        output="output_tokens",
        milliseconds=float,
    ),
)


def _csv_lines(
    path: Path, file: Iterable[str], header: list[str], form: _CsvForm
) -> Iterator[WorkItem]:
    time, prompt, output = (header.index(name) for name in (form.time, form.prompt, form.output))
    for number, row in enumerate(csv.reader(file), start=2):
        if not row:
            continue
        try:
            if len(row) <= max(time, prompt, output):
                message = f"has {len(row)} columns, the header {len(header)}"
                raise ValueError(message)
            yield _checked(
                WorkItem(
                    id="",
                    arrival_ms=form.milliseconds(row[time]),
                    prompt_tokens=int(float(row[prompt])),
                    output_tokens=int(float(row[output])),
                )
            )
        except (ValueError, OverflowError) as error:
            raise _bad_line(path, number, error) from None


def _json_lines(path: Path, lines: Iterable[str]) -> Iterator[WorkItem]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield _checked(_json_arrival(parse_object(line)))
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise _bad_line(path, number, error) from None


def _json_arrival(data: dict[str, object]) -> WorkItem:
    from hwtune.io.typed import number

    in_seconds = "chat_id" in data
    ids = data.get("hash_ids") or []
    if not isinstance(ids, list) or not all(type(item) is int for item in ids):
        message = "hash_ids must be a list of whole numbers"
        raise ValueError(message)
    return WorkItem(
        id="",
        arrival_ms=number(data["timestamp"], "timestamp") * (1000.0 if in_seconds else 1.0),
        prompt_tokens=int(number(data["input_length"], "input_length")),
        output_tokens=int(number(data["output_length"], "output_length")),
        prefix_names=_chain(ids),
        prefix_name_tokens=BAILIAN_BLOCK_TOKENS if in_seconds else MOONCAKE_BLOCK_TOKENS,
    )


def _chain(ids: list[int]) -> tuple[str, ...]:
    """Names of parts together with what stands before them, should a trace reuse an id."""
    names = []
    before = 0
    for item in ids:
        before = hash((before, item))
        names.append(f"{before:x}")
    return tuple(names)


def _checked(arrival: WorkItem) -> WorkItem:
    if not math.isfinite(arrival.arrival_ms):
        message = "the time is not finite"
        raise ValueError(message)
    if min(arrival.prompt_tokens, arrival.output_tokens) < 0:
        message = "a length is negative"
        raise ValueError(message)
    if max(arrival.prompt_tokens, arrival.output_tokens) > LARGEST_SIZE:
        message = f"a length is beyond {LARGEST_SIZE} (2**31)"
        raise ValueError(message)
    return arrival


def _bad_line(path: Path, number: int, error: Exception) -> InputError:
    what = f"lacks {error}" if isinstance(error, KeyError) else str(error) or "is too short"
    return InputError(f"{path}: line {number}: {what[:200]}")


def _from_zero(arrivals: list[WorkItem]) -> tuple[WorkItem, ...]:
    ordered = sorted(arrivals, key=lambda arrival: arrival.arrival_ms)
    start = ordered[0].arrival_ms
    return tuple(
        replace(arrival, id=f"r{index}", arrival_ms=arrival.arrival_ms - start)
        for index, arrival in enumerate(ordered)
    )
