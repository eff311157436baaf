"""Lines of JSON -> batch cases, one at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hwtune.domain.errors import InputError
from hwtune.domain.json_text import parse_json

Case = dict[str, Any]


def read_cases(reference: str) -> Iterator[tuple[int, Case | InputError]]:
    """Line number and case, or what is wrong with the line; blank lines are skipped.

    Args:
        reference: path of a JSONL file, or ``-`` for standard input.

    Raises:
        InputError: the file cannot be read.
    """
    for number, line in enumerate(_lines(reference), start=1):
        if line.strip():
            yield number, _case(line)


def _case(line: bytes) -> Case | InputError:
    try:
        case = parse_json(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return InputError(f"not UTF-8 text (byte {error.start} of the line)")
    except ValueError as error:
        return InputError(f"not JSON: {error}")
    if not isinstance(case, dict):
        return InputError(f"expected a JSON object, found {type(case).__name__}")
    return case


def _lines(reference: str) -> Iterator[bytes]:
    try:
        if reference == "-":
            yield from sys.stdin.buffer
            return
        with Path(reference).expanduser().open("rb") as file:
            yield from file
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        message = f"{reference[:200]}: cannot be read: {reason}"
        raise InputError(message) from None
