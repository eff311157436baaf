"""Saved results of any client, read for comparison: which file is what, and what pairs up."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hwtune.domain.errors import InputError
from hwtune.domain.json_text import parse_json
from hwtune.domain.saved_repeats import merge_repetitions, signature
from hwtune.domain.saved_run import SavedRun
from hwtune.io.records import DESIGN_FILE
from hwtune.io.saved_aiperf import (
    RECORDS_FILE,
    aiperf_run,
    is_aiperf_record,
    is_aiperf_summary,
    read_summary,
)
from hwtune.io.saved_guidellm import guidellm_runs, is_guidellm_report
from hwtune.io.saved_ours import our_runs
from hwtune.io.saved_vllm import is_vllm_result, vllm_run

KNOWN = "vllm bench serve, aiperf, guidellm or hwtune"


def pair_results(
    baseline: Path, candidate: Path
) -> tuple[list[tuple[str, SavedRun, SavedRun]], list[str]]:
    """Results of two sides, paired by name; two single ones are a pair whatever they are called.

    Returns:
        (tier, baseline, candidate) per pair, and a note for each result without a partner.

    Raises:
        InputError: nothing can be paired, or a file is not a detailed result.
    """
    try:
        first, notes = merge_repetitions(read_side(baseline))
        second, more = merge_repetitions(read_side(candidate))
    except ValueError as error:
        raise InputError(str(error)) from None
    notes = list(dict.fromkeys([*notes, *more]))
    if len(first) == len(second) == 1:
        (name, run), (other,) = next(iter(first.items())), second.values()
        return [(name, run, other)], notes
    common = [name for name in first if name in second]
    if not common:
        return _by_workload(baseline, first, candidate, second), notes
    alone = sorted(set(first) ^ set(second))
    notes += [f"{name}: only on one side, left out" for name in alone]
    return [(name, first[name], second[name]) for name in common], notes


def _by_workload(
    baseline: Path, first: Mapping[str, SavedRun], candidate: Path, second: Mapping[str, SavedRun]
) -> list[tuple[str, SavedRun, SavedRun]]:
    """Results whose names say nothing, such as appended ones: the same workload is the same tier."""
    sides = [
        {signature(run): (name, run) for name, run in side.items()} for side in (first, second)
    ]
    found = [
        (name, run, sides[1][key][1]) for key, (name, run) in sides[0].items() if key in sides[1]
    ]
    if not found or [len(side) for side in sides] != [len(first), len(second)]:
        message = (
            f"{baseline} and {candidate} have no result of the same name, and none of the same"
            " workload that would be the only one"
        )
        raise InputError(message)
    return found


def read_side(path: Path) -> Mapping[str, SavedRun]:
    """Tier name -> run, of one file, one directory, or one arm of a run of ours (``DIR:ARM``).

    Raises:
        InputError: unreadable, of no known client, damaged, or without the single requests.
    """
    folder, _, arm = str(path).rpartition(":")
    if arm in ("baseline", "candidate") and not path.exists():
        return our_runs(Path(folder), arm)  # type: ignore[arg-type]
    if not path.exists():
        message = f"{path}: no such file or directory"
        raise InputError(message)
    if not path.is_dir():  # a pipe as well, such as <(zcat result.json.gz)
        return _read_file(path)
    if (path / DESIGN_FILE).exists():
        message = f"{path}: holds both arms; name one, as {path}:baseline or {path}:candidate"
        raise InputError(message)
    return _read_directory(path)


def _read_directory(path: Path) -> dict[str, SavedRun]:
    if (path / RECORDS_FILE).exists():
        return _read_file(path / RECORDS_FILE)
    runs: dict[str, SavedRun] = {}
    for file in sorted([*path.glob("*.json"), *path.glob("*.jsonl")]):
        runs.update(_read_file(file))
    for records in sorted(path.glob(f"*/{RECORDS_FILE}")):
        (run,) = _read_file(records).values()
        runs[records.parent.name] = run
    # vllm bench sweep: a folder per cell with run=0.json, run=1.json and a summary.
    for file in sorted(path.glob("*/run=*.json")):
        (run,) = _read_file(file).values()
        runs[f"{file.parent.name}_run{file.stem.removeprefix('run=')}"] = run
    if not runs:
        message = f"{path}: holds no .json result"
        raise InputError(message)
    return runs


def _read_file(path: Path) -> dict[str, SavedRun]:
    try:
        raw = path.read_bytes()
        objects = _objects(raw)
    except (OSError, ValueError) as error:
        message = f"{path}: cannot be read as JSON ({error})"
        raise InputError(message) from None
    sha256 = hashlib.sha256(raw).hexdigest()
    try:
        return _runs(path, sha256, objects)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        message = f"{path}: {what}"
        raise InputError(message) from None


def _objects(raw: bytes) -> list[Any]:
    """The one JSON value of a file, or one per line."""
    try:
        return [parse_json(raw)]
    except ValueError:
        lines = [line for line in raw.splitlines() if line.strip()]
        if len(lines) < 2:
            raise
        return [parse_json(line) for line in lines]


def _runs(path: Path, sha256: str, objects: list[Any]) -> dict[str, SavedRun]:
    source, first = str(path), objects[0] if objects else None
    if isinstance(first, dict) and is_guidellm_report(first):
        return guidellm_runs(source, sha256, first)
    if is_aiperf_record(first):
        return {_tier_name(path): aiperf_run(source, sha256, objects, read_summary(path))}
    if is_aiperf_summary(first):
        records = path.parent / RECORDS_FILE
        if not records.exists():
            message = f"a summary without its {RECORDS_FILE}: single requests are needed"
            raise ValueError(message)
        return _read_file(records)
    if not all(map(is_vllm_result, objects)) or not objects:
        message = f"not a result of {KNOWN} (vLLM's has a key `completed`)"
        raise ValueError(message)
    name = _tier_name(path)
    names = [name] if len(objects) == 1 else [f"{name}#{k}" for k in range(1, len(objects) + 1)]
    return {
        n: vllm_run(source, f"{sha256}{n.removeprefix(name)}", o)
        for n, o in zip(names, objects, strict=True)
    }


def _tier_name(path: Path) -> str:
    return path.stem.removeprefix("result_")
