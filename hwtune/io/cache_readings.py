"""``prefix_cache.jsonl``: what the servers of a run said of their prefix caches."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path

from hwtune.domain.errors import ExternalFailureError, InputError
from hwtune.domain.json_text import parse_json
from hwtune.domain.prefix_cache import CacheReading
from hwtune.io.typed import build

CACHE_FILE = "prefix_cache.jsonl"


def append_readings(run_dir: Path, readings: Iterable[CacheReading]) -> None:
    """One line each.

    Raises:
        ExternalFailureError: the disk refuses.
    """
    path = run_dir / CACHE_FILE
    lines = [json.dumps(dataclasses.asdict(reading)) + "\n" for reading in readings]
    if not lines:
        return
    try:
        with path.open("a", encoding="utf-8") as file:
            file.writelines(lines)
    except OSError as error:
        message = f"cannot write {path}: {error.strerror}"
        raise ExternalFailureError(message) from None


def read_readings(run_dir: Path) -> tuple[CacheReading, ...]:
    """All of them; none when the servers told nothing.

    Raises:
        InputError: a line is no reading.
    """
    path = run_dir / CACHE_FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return tuple(build(CacheReading, parse_json(line)) for line in lines)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError) as error:
        message = f"{path}: cannot be read ({error})"
        raise InputError(message) from None
