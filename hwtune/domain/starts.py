"""Where a server starts again in the same log: each start is judged by itself.

A log that is appended to, a container that is restarted, a pod in a crash loop: the facts of one
start say nothing of the next. The first lines of a start are those about the platform and its
plugins, printed by every process; only then the server names its version.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hwtune.domain.log_lines import LogLine
from hwtune.domain.marker_set import StartKind

_MAX_PENDING = 200
_ONE_OF_SEVERAL = "ApiServer_"
"""``--api-server-count`` starts several, and each names the version."""


@dataclass(slots=True)
class Progress:
    """How far one start has got."""

    server_process: str | None = None
    """The process that named the version; empty when it printed no name."""
    moved: int = 0
    """Goes up with each step: engine initialised, failed, started, stopping."""
    ended: bool = False
    """What comes next can only be another start: it serves, stopped, or gave up for good."""


class StartWatch:
    """Shown every line with what its markers begin; says when a new start began."""

    def __init__(self) -> None:
        self._pending: list[LogLine] | None = None
        self._pending_at = -1

    def see(
        self, line: LogLine, kinds: Iterable[StartKind], progress: Progress
    ) -> list[LogLine] | None:
        """The lines of the new start so far, this one included; None when it is the same start.

        Args:
            line: the next line.
            kinds: what it begins, by its markers.
            progress: of the start so far.
        """
        began = set(kinds)
        self._remember(line, began, progress)
        if not self._is_new(line, began, progress):
            return None
        lines, self._pending = self._pending or [line], None
        return lines

    def _remember(self, line: LogLine, began: set[StartKind], progress: Progress) -> None:
        if self._pending is not None and self._pending_at != progress.moved:
            self._pending = None
        if self._pending is not None:
            self._pending.append(line)
            if len(self._pending) > _MAX_PENDING:
                self._pending = None
        elif "early" in began and progress.moved:
            self._pending, self._pending_at = [line], progress.moved

    def _is_new(self, line: LogLine, began: set[StartKind], progress: Progress) -> bool:
        process = line.process or ""
        if "engine" in began:
            return progress.ended and self._pending is not None
        if "server" not in began or process.startswith(_ONE_OF_SEVERAL):
            return False
        if progress.ended:
            return True
        first = progress.server_process
        if first is None:
            return False
        return bool(progress.moved) or (bool(first and process) and first != process)
