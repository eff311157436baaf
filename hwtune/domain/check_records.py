"""Records of a marker check: a check, its likely causes, the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hwtune.domain.evidence import Place

CheckStatus = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One likely cause of a failed check."""

    id: str
    text: str
    supports: tuple[str, ...]
    """Evidence for it."""
    contradicts: tuple[str, ...]
    """Evidence against it."""
    next_step: str
    """What to run or look at next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question about the server and its answer."""

    name: str
    question: str
    status: CheckStatus
    expected: str = ""
    seen: str = ""
    reason: str = ""
    """Why it was skipped, or what failed."""
    evidence: tuple[Place, ...] = ()
    diagnosis: tuple[Cause, ...] = ()
    """Likely causes, the likeliest first; only for failed checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clue:
    """A symptom and the value it must have."""

    symptom: str
    equals: str | None = None
    contains: tuple[str, ...] = ()
    """Texts one of which must occur in it."""
    says: str = ""
    """What it means, for people; ``{value}`` is the symptom's value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisRule:
    """One likely cause, as data."""

    id: str
    checks: tuple[str, ...]
    """Names of the checks whose failure it can explain; a trailing ``*`` matches the rest."""
    cause: str
    next_step: str
    requires: tuple[Clue, ...] = ()
    supports: tuple[Clue, ...] = ()
    contradicts: tuple[Clue, ...] = ()
    example: Mapping[str, str] = field(default_factory=dict)
    counter_example: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerReport:
    """All checks of one server."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.status == "failed")

    @property
    def summary(self) -> str:
        """The verdict in one line."""
        counts = {status: 0 for status in ("passed", "failed", "skipped")}
        for item in self.checks:
            counts[item.status] += 1
        numbers = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
        if self.passed:
            return f"PASS: {numbers}"
        first = self.failed[0]
        return f"FAIL: {numbers}; {first.name}: {first.reason}"
