"""What several kinds of test need."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


def drawn(page: Path, profile: Path) -> str:
    """The document as a real browser has it after running the page's script."""
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={profile}", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


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
