"""Several saved runs of the same prompts as one: the mean per prompt.

A prompt that was asked three times is one observation of the prompt, not three.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

from hwtune.domain.saved_run import SavedRequest, SavedRun
from hwtune.domain.stats import mean

_REPETITION = re.compile(r"(?P<base>.+?)[-_.]?(?:rep|run|trial|iter)[-_.]?\d+", re.IGNORECASE)
_COUNTED = re.compile(r"(?P<base>.+?)(?:#\d+|-\d{8}-\d{6})")
"""Results appended to one file, and names that vLLM's client ends with the date: repetitions where
they measured the same, else further results."""


def merge_repetitions(runs: Mapping[str, SavedRun]) -> tuple[dict[str, SavedRun], list[str]]:
    """Runs named ``4-8K_rep1``, ``4-8K_rep2`` … become ``4-8K``; others stay.

    Returns:
        runs by name, and a note for each that was made of several.

    Raises:
        ValueError: repetitions of different workloads or prompts.
    """
    groups: dict[str, list[SavedRun]] = {}
    for name, run in runs.items():
        groups.setdefault(_base(name, run, groups), []).append(run)
    merged: dict[str, SavedRun] = {}
    notes = []
    for base, members in groups.items():
        if len(members) == 1:
            merged[base] = members[0]
            continue
        merged[base] = _merged(base, members)
        notes.append(f"{base}: the mean per prompt of {len(members)} repetitions")
    return merged, notes


def _base(name: str, run: SavedRun, groups: Mapping[str, Sequence[SavedRun]]) -> str:
    """The group a run belongs to."""
    if match := _REPETITION.fullmatch(name):
        return match["base"]
    match = _COUNTED.fullmatch(name)
    if match is None:
        return name
    alike = (base for base, (first, *_) in groups.items() if signature(first) == signature(run))
    base = match["base"] if "#" not in name else name
    return next((found for found in alike if found.startswith(match["base"])), _free(base, groups))


def _free(name: str, taken: Mapping[str, object]) -> str:
    numbers = (f"{name}#{number}" for number in range(2, len(taken) + 3))
    return name if name not in taken else next(n for n in numbers if n not in taken)


def signature(run: SavedRun) -> tuple[object, ...]:
    """Equal for runs of the same workload and prompts, as far as the file tells."""
    workload = sorted((key, str(value)) for key, value in run.workload.items())
    return (*workload, *((request.input_tokens, request.key) for request in run.requests))


def _merged(base: str, runs: Sequence[SavedRun]) -> SavedRun:
    first = runs[0]
    for run in runs[1:]:
        if run.workload != first.workload or len(run.requests) != len(first.requests):
            message = f"{base}: its repetitions differ in workload: {first.source}, {run.source}"
            raise ValueError(message)
    starts = [run.started_unix_s for run in runs if run.started_unix_s is not None]
    ends = [run.ended_unix_s for run in runs if run.ended_unix_s is not None]
    content = "".join(run.sha256 for run in runs)
    return SavedRun(
        source=f"{first.source} and {len(runs) - 1} more",
        sha256=hashlib.sha256(content.encode()).hexdigest(),
        workload=first.workload,
        requests=tuple(
            _mean_request(base, same) for same in zip(*(run.requests for run in runs), strict=True)
        ),
        output_throughput=mean([run.output_throughput for run in runs]),
        started_unix_s=min(starts, default=None),
        ended_unix_s=max(ends, default=None),
        repetitions=tuple(runs),
    )


def _mean_request(base: str, same: Sequence[SavedRequest]) -> SavedRequest:
    failed = next((request for request in same if request.error), None)
    if failed is not None:
        return failed
    if len({(request.input_tokens, request.key) for request in same}) > 1:
        message = f"{base}: its repetitions do not have the same prompts in the same order"
        raise ValueError(message)
    return SavedRequest(
        input_tokens=same[0].input_tokens,
        output_tokens=round(mean([float(request.output_tokens) for request in same])),
        ttft_s=mean([request.ttft_s for request in same]),
        e2el_s=mean([request.e2el_s for request in same]),
        text=same[0].text,
        error="",
        key=same[0].key,
    )
