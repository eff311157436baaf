"""JSON that others wrote."""

from __future__ import annotations

import json
from typing import Any


class NestingError(ValueError):
    """Deeper than Python follows: no crash leaves this behind."""


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401 - JSON
    """The value; ``NaN`` and ``Infinity`` are taken as Python's reader takes them.

    Raises:
        ValueError: not JSON.
        NestingError: nested deeper than Python follows.
    """
    try:
        return json.loads(text)
    except RecursionError:
        message = "nested too deeply"
        raise NestingError(message) from None


def parse_object(text: str | bytes) -> dict[str, Any]:
    """The value, where only an object will do.

    Raises:
        ValueError: not JSON.
        TypeError: JSON of another kind.
    """
    value = parse_json(text)
    if not isinstance(value, dict):
        message = f"expected a JSON object, found {type(value).__name__}"
        raise TypeError(message)
    return value
