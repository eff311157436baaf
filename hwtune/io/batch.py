"""Lines of JSON -> batch cases, one at a time."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hwtune.domain.errors import InputError


def read_cases(reference: str) -> Iterator[dict[str, Any]]:
    """The cases of a JSONL file, or of standard input for ``-``; blank lines are skipped.

    Raises:
        InputError: the file cannot be read, or a line is no JSON object.
    """
    for number, line in enumerate(_lines(reference), start=1):
        if not line.strip():
            continue
        try:
            case = json.loads(line)
        except (ValueError, RecursionError) as error:
            message = f"{reference}:{number}: not JSON: {error}"
            raise InputError(message) from None
        if not isinstance(case, dict):
            message = f"{reference}:{number}: expected a JSON object, found {type(case).__name__}"
            raise InputError(message)
        yield case


def _lines(reference: str) -> Iterator[str]:
    try:
        if reference == "-":
            yield from sys.stdin
            return
        with Path(reference).expanduser().open(encoding="utf-8-sig") as file:
            yield from file
    except OSError as error:
        message = f"{reference}: cannot be read: {error.strerror}"
        raise InputError(message) from None
    except UnicodeDecodeError as error:
        message = f"{reference}: not UTF-8 text (byte {error.start})"
        raise InputError(message) from None
