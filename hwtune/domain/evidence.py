"""What was seen of a server: facts, each with the place it was seen at, and counted calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hwtune.domain.checking import KernelCheck
from hwtune.domain.environment import ServerEnvironment
from hwtune.domain.launch import LaunchPlan

KernelOutcome = Literal[
    "hit",
    "fallback",
    "captured",
    "replayed",
    "fault",
    "returned",
    "stored",
    "called",
    "recorded",
]
Value = bool | int | float | str | tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCount:
    """Calls that one process counted for one kernel with one outcome and reason."""

    process: int
    """Process id of the vLLM process that counted."""
    host: str = ""
    """Name of the machine it ran on."""
    nonce: str
    """Nonce of the plan the process ran under; counts of another run are no evidence."""
    kernel: str
    outcome: KernelOutcome
    """``hit``: the kernel computed the call. ``captured``: called while a graph was recorded.
    ``replayed``: such a graph ran, counted once per call that it holds.
    ``fallback``: vLLM's own path took the call. ``fault``: our code raised, vLLM's path served.
    The others count what vllm-ascend does by itself: see ``hwtune.domain.attn_states``."""
    reason: str
    """Why it fell back or failed; empty for hits."""
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where something was read."""

    file: str
    """Path as given, ``-`` for standard input, or a URL."""
    line: int | None
    """Line number from 1; None where lines mean nothing (a URL)."""
    process: str | None
    """As vLLM prints it, e.g. ``Worker_TP1 pid=28146``."""
    time: str | None
    """As printed; vLLM prints no year."""
    text: str
    """The line without colours and outer prefixes, cut to a few hundred characters."""

    @property
    def is_url(self) -> bool:
        """Whether a running server was asked."""
        return self.file.startswith(("http://", "https://"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """One line (or metric) that states a fact."""

    fact: str
    value: Value
    rank: int
    """The higher rank decides: what the engine resolved outranks what the user asked for."""
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """What all sightings of one fact amount to."""

    name: str
    value: Value
    evidence: tuple[Place, ...]
    """The first few places that state ``value``."""
    sightings: int
    """How many places state ``value``, the ones beyond ``evidence`` included."""
    others: tuple[Sighting, ...] = ()
    """Places that state another value, one per value: shown, never dropped."""


MarkKind = Literal[
    "registered",
    "observing",
    "counting",
    "layer bound",
    "first hit",
    "fault",
    "refused",
    "evidence lost",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A line that hwtune's plugin printed through vLLM's logger."""

    kind: MarkKind
    nonce: str
    fields: Mapping[str, str]
    place: Place


Phase = Literal["start", "serving", "shutdown"]
"""Before start-up completed, after it, or after the server was asked to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An exception or fatal message, in the words of the program that gave up."""

    text: str
    place: Place
    phase: Phase
    wrapper: bool
    """It only reports that another process failed, e.g. ``Engine core initialization failed``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """What the launcher wrote about the server process."""

    state: str
    """starting, ready, stopped or died."""
    exit_code: int | None
    reason: str | None
    place: Place
    trouble: str | None = None
    """What the watchdog found wrong, if the server did not work again since."""
    evidence_lost: tuple[str, ...] = ()
    """Evidence that the launcher could not keep, and why."""
    owner_gone: int | None = None
    """Process id of the hwtune that ran the server, when the state says that it still does and
    there is no such process any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStart:
    """One start of several in one log."""

    number: int
    """From 1, in the order of the log."""
    place: Place | None
    """Its first line; None for one whose beginning the log lacks."""
    version: str | None
    outcome: str
    """How it went, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything known of one server."""

    facts: Mapping[str, Fact] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    """In the order in which they were seen."""
    fallbacks: tuple[Place, ...] = ()
    """Lines that say attention took another path than asked for."""
    request_errors: int = 0
    """Requests that the server refused or failed; the server itself is fine."""
    marks: tuple[Mark, ...] = ()
    counts: tuple[KernelCount, ...] = ()
    kernel_checks: tuple[KernelCheck, ...] = ()
    """What checked mode compared."""
    has_counters: bool = False
    """Whether a counter directory exists, so that no counted call means no call."""
    nonce: str | None = None
    """Nonce of the plan, or of the one plugin registration that the log shows."""
    nonce_verified: bool = True
    """Whether a plan or the user named the nonce; a log alone vouches for nothing it quotes."""
    plan: LaunchPlan | None = None
    """What the launcher intended, when the run directory holds it."""
    other_runs: tuple[str, ...] = ()
    """Nonces of plugins in logs that show none of the run they were given for: what such a log
    states is no evidence of that run."""
    foreign_marks: int = 0
    """Marker texts that are no evidence: another nonce, or quoted inside another message."""
    status: RunStatus | None = None
    starts: tuple[ServerStart, ...] = ()
    """Every start of the server in these logs, when there are several."""
    judged_start: int = 1
    """Number of the start that everything here is about."""
    environment: ServerEnvironment | None = None
    """What the server ran in, when its launcher recorded it."""
    last_line: Place | None = None
    files: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    """Evidence that is damaged, and how, when that does not keep the rest from being read."""
    notes: tuple[str, ...] = ()

    def value(self, name: str) -> Value | None:
        """Value of a fact, or None when nothing states it."""
        fact = self.facts.get(name)
        return None if fact is None else fact.value

    def places(self, name: str) -> tuple[Place, ...]:
        """Where the fact was seen; empty when it was not."""
        fact = self.facts.get(name)
        return () if fact is None else fact.evidence
