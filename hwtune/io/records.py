"""The run directory of an A/B run: ``design.json``, ``requests.jsonl``, ``comparison.json``."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hwtune.domain.bench import Comparison, RequestRecord
from hwtune.domain.errors import ExternalFailureError, InputError, UsageError
from hwtune.domain.json_text import NestingError, parse_json
from hwtune.domain.plain_text import harmless
from hwtune.domain.stats import finite_or_null
from hwtune.domain.workload import DESIGN_SCHEMA_VERSION, Design, check_design
from hwtune.io.typed import build
from hwtune.io.whole_file import replacing

DESIGN_FILE = "design.json"
REQUESTS_FILE = "requests.jsonl"
COMPARISON_FILE = "comparison.json"
REPORT_FILE = "report.md"
PAGE_FILE = "report.html"


class RequestJournal:
    """Appends one line per finished request and hands it to the system at once.

    A half-written last line of an earlier crash is ended first, so that it spoils no new record. The
    file is locked while it is open, and by nothing that would outlive a killed process.

    Raises:
        ExternalFailureError: the file cannot be opened.
        InputError: another process is measuring into it: both would load the servers at once.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / REQUESTS_FILE
        try:
            self._file = self._path.open("a", encoding="utf-8")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            torn = _ends_without_newline(self._path)
            if torn:
                self._file.write("\n")
        except BlockingIOError:
            self._file.close()
            message = f"{run_dir}: another hwtune is measuring into it; wait for it, or end it"
            raise InputError(message) from None
        except OSError as error:
            raise _unwritable(self._path, error) from None

    def append(self, record: RequestRecord) -> None:
        """Writes and flushes one record.

        Raises:
            ExternalFailureError: the disk refuses.
        """
        try:
            self._file.write(
                json.dumps(finite_or_null(dataclasses.asdict(record)), allow_nan=False) + "\n"
            )
            self._file.flush()
        except OSError as error:
            raise _unwritable(self._path, error) from None

    def sync(self) -> None:
        """Waits until everything written so far would survive a power cut.

        Raises:
            ExternalFailureError: the disk refuses.
        """
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _unwritable(self._path, error) from None

    def close(self) -> None:
        """For ``contextlib.closing``.

        Raises:
            ExternalFailureError: the disk refuses what a failed ``append`` left behind.
        """
        try:
            self._file.close()
        except OSError as error:
            raise _unwritable(self._path, error) from None


def _unwritable(path: Path, error: OSError) -> ExternalFailureError:
    return ExternalFailureError(f"cannot write {path}: {error.strerror}")


def _ends_without_newline(path: Path) -> bool:
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def read_requests(run_dir: Path) -> tuple[RequestRecord, ...]:
    """All records of a run, without lines that a crash cut short.

    Raises:
        InputError: a line is whole JSON and yet not a record.
    """
    path = run_dir / REQUESTS_FILE
    try:
        return tuple(_read_lines(path))
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path}: cannot be read ({error})"
        raise InputError(message) from None


def _read_lines(path: Path) -> Iterator[RequestRecord]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            data = parse_json(line)
        except NestingError as error:
            raise _not_a_record(path, number, str(error)) from None
        except ValueError:
            # Cut by a crash: the request it belonged to is measured again on resume.
            continue
        try:
            record = build(RequestRecord, data)
        except TypeError as error:
            raise _not_a_record(path, number, str(error)) from None
        if record.damage:
            raise _not_a_record(path, number, f"damaged: {record.damage}")
        yield record


def _not_a_record(path: Path, number: int, why: str) -> InputError:
    return InputError(f"{path}: line {number} is not a request record ({why})")


def require_fresh(run_dir: Path) -> None:
    """Refuses a directory that already holds a run.

    Raises:
        InputError: it does; nothing is ever overwritten.
    """
    if (run_dir / DESIGN_FILE).exists() or (run_dir / REQUESTS_FILE).exists():
        message = f"{run_dir} already holds a run; continue it with --resume, or name another"
        raise InputError(message)


def write_design(design: Design, run_dir: Path) -> None:
    """Writes ``design.json``, making the directory.

    Raises:
        ExternalFailureError: the directory cannot be made or written.
        InputError: the directory already holds a run.
    """
    require_fresh(run_dir)
    write_json(run_dir / DESIGN_FILE, dataclasses.asdict(design))


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Writes a JSON file whole or not at all.

    Raises:
        ExternalFailureError: the disk or directory refuses.
    """
    text = json.dumps(finite_or_null(data), indent=2, allow_nan=False)
    write_text(path, text + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a text file whole or not at all, without control characters, which a pager may obey.

    Raises:
        ExternalFailureError: the disk or directory refuses.
    """
    try:
        with replacing(path) as place:
            # A server's message may hold half of a surrogate pair, which UTF-8 has no bytes for.
            place.write_text(harmless(text), encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise _unwritable(path, error) from None


def read_design(run_dir: Path) -> Design:
    """Reads ``design.json``.

    Raises:
        InputError: missing, not JSON, another version, a key missing, unknown or of the wrong type, or a design
            that cannot be measured.
    """
    path = run_dir / DESIGN_FILE
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        message = f"{run_dir}: no {DESIGN_FILE}, so this is not a run directory of ab-bench"
        raise InputError(message) from None
    except (OSError, ValueError) as error:
        message = f"{path}: cannot be read as JSON ({error})"
        raise InputError(message) from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != DESIGN_SCHEMA_VERSION:
        message = f"{path}: schema_version {version}, this hwtune reads {DESIGN_SCHEMA_VERSION}"
        raise InputError(message)
    try:
        design = build(Design, data)
        check_design(design)
    except (TypeError, UsageError) as error:
        message = f"{path}: not a design ({error})"
        raise InputError(message) from None
    return design


def write_comparison(comparison: Comparison, run_dir: Path) -> Path:
    """Writes ``comparison.json`` and returns its path."""
    path = run_dir / COMPARISON_FILE
    write_json(path, dataclasses.asdict(comparison))
    return path
