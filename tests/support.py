"""What several kinds of test need."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


def calls_of(function: Callable[[], None]) -> set[str]:
    """Names of all functions, built in or not, that are called inside a function."""
    names: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "c_call":
            names.add(getattr(argument, "__name__", "?"))
        elif event == "call":
            names.add(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return names - {function.__name__, "setprofile"}
