"""What a long measurement shows while it runs: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class PlainWatcher:
    """Lines on standard error; they also make sense in a log."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None

    def line(self, text: str) -> None:
        """One line, at once."""
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def block(self, done: int, total: int, text: str) -> None:
        """One line with the time that is left, by the pace so far."""
        now = time.monotonic()
        if self._first is None:
            self._first = (now, done)
        since, before = self._first
        left = ""
        if done > before and done < total:
            left = f" · {time_left((now - since) / (done - before) * (total - done))} left"
        self.line(f"[{done}/{total}] {text}{left}")


def time_left(seconds: float) -> str:
    """Rounded as people say it: ``40 s``, ``7 min``, ``2.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class BarWatcher:
    """Lines above a bar that shows the pace."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def line(self, text: str) -> None:
        """One line above the bar."""
        self._progress.console.print(text, markup=False, highlight=False)

    def block(self, done: int, total: int, text: str) -> None:
        """Moves the bar."""
        self._progress.update(self._task, completed=done, total=total)
        self.line(text)


@contextmanager
def watching() -> Iterator[PlainWatcher | BarWatcher]:
    """A bar when standard error is a terminal, else plain lines."""
    if not sys.stderr.isatty():
        yield PlainWatcher()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("blocks, left:"), TimeLeft())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield BarWatcher(progress, progress.add_task("blocks", total=None))
