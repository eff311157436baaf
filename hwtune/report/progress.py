"""What a long measurement shows while it runs: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hwtune.domain.plain_text import one_line
from hwtune.domain.so_far import BlockNews

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID


class PlainWatcher:
    """Lines on standard error; they also make sense in a log."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None

    def line(self, text: str) -> None:
        """One line, at once."""
        sys.stderr.write(one_line(text) + "\n")
        sys.stderr.flush()

    def block(self, news: BlockNews) -> None:
        """One line with the time that is left, by the pace so far."""
        now = time.monotonic()
        if self._first is None:
            self._first = (now, news.done)
        since, before = self._first
        standing = f" · so far {news.standing}" if news.standing else ""
        left = ""
        if before < news.done < news.total:
            pace_s = (now - since) / (news.done - before)
            left = f" · {time_left(pace_s * (news.total - news.done))} left"
        self.line(f"[{news.done}/{news.total}] {news.line}{standing}{left}")


def time_left(seconds: float) -> str:
    """Rounded as people say it: ``40 s``, ``7 min``, ``2.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class BarWatcher:
    """Lines above one bar per tier, each with what the tier shows so far, and one for all."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._all = progress.add_task("all blocks", total=None, standing="")
        self._tiers: dict[str, TaskID] = {}

    def line(self, text: str) -> None:
        """One line above the bars."""
        self._progress.console.print(one_line(text), markup=False, highlight=False)

    def block(self, news: BlockNews) -> None:
        """Moves the bars."""
        if news.tier not in self._tiers:
            self._tiers[news.tier] = self._progress.add_task(news.tier, standing="")
        tier = self._tiers[news.tier]
        self._progress.update(tier, completed=news.tier_done, total=news.tier_total)
        if news.standing:
            self._progress.update(tier, standing=news.standing)
        self._progress.update(self._all, completed=news.done, total=news.total)
        self.line(news.line)


@contextmanager
def watching() -> Iterator[PlainWatcher | BarWatcher]:
    """Bars when standard error is a terminal, else plain lines."""
    if not sys.stderr.isatty():
        yield PlainWatcher()
        return
    from rich.console import Console

    with bars(Console(file=sys.__stderr__)) as watcher:  # bars are drawn with control characters
        yield watcher


@contextmanager
def bars(console: Console) -> Iterator[BarWatcher]:
    """Bars that vanish when all is done; the lines above them stay."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    name, standing = (TextColumn(f"{{task.{key}}}", markup=False) for key in _FIELDS)
    columns = (name, BarColumn(bar_width=24), MofNCompleteColumn(), TimeLeft(), standing)
    with Progress(*columns, console=console, transient=True) as progress:
        yield BarWatcher(progress)


_FIELDS = ("description", "fields[standing]")
