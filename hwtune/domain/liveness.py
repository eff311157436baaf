"""Does a running server get on with its work? One verdict from repeated looks at it.

A server can be silent because nobody asks it anything. So silence alone is no trouble: either it
does not answer ``/health``, or it has requests in progress and computes nothing, or it has open
connections and lets a request of one token wait.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """One look at a server."""

    at_s: float
    """Monotonic clock, in seconds."""
    log_bytes: int
    """Bytes of output so far."""
    healthy: bool
    """Whether ``/health`` was answered, and well."""
    progress: float
    """Grows with every token and every attention call; its size means nothing."""
    requests: int | None
    """Requests in progress or waiting by its own metrics; None when it does not say."""
    connections: int | None
    """Open connections of clients; None when that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessVerdict:
    """What a look amounts to."""

    trouble: str | None = None
    """What is wrong, in one line; None when nothing is known to be."""
    ask: bool = False
    """Only a request of one's own can tell."""


class Liveness:
    """Remembers when the server last did something.

    Args:
        patience_s: how long a server may do nothing although it should, in seconds.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._last: Pulse | None = None
        self._healthy_s = 0.0
        self._printed_s = 0.0
        self._work_s = 0.0
        """When it last computed something, or last had nothing to do."""

    def feed(self, pulse: Pulse) -> LivenessVerdict:
        """Judges one more look."""
        last, self._last = self._last, pulse
        now = pulse.at_s
        if last is None or pulse.healthy:
            self._healthy_s = now
        if last is None or pulse.log_bytes != last.log_bytes:
            self._printed_s = now
        if last is None or pulse.progress != last.progress or _idle(pulse):
            self._work_s = now
        return self._verdict(pulse)

    def _verdict(self, pulse: Pulse) -> LivenessVerdict:
        unwell_s, quiet_s, still_s = (
            pulse.at_s - since for since in (self._healthy_s, self._printed_s, self._work_s)
        )
        if still_s < self._patience_s:
            return LivenessVerdict()
        if unwell_s >= self._patience_s:
            text = f"no good answer to /health for {unwell_s:.0f} s, no token for {still_s:.0f} s"
            quiet = f", no log line for {quiet_s:.0f} s" if quiet_s >= self._patience_s else ""
            return LivenessVerdict(trouble=text + quiet)
        if pulse.requests:
            text = f"{pulse.requests} requests in progress and no token for {still_s:.0f} s"
            return LivenessVerdict(trouble=text)
        return LivenessVerdict(ask=pulse.healthy)

    def answered(self, at_s: float) -> None:
        """A request of our own was answered."""
        self._work_s = self._healthy_s = at_s

    def unanswered(self, waited_s: float) -> LivenessVerdict:
        """A request of our own was not."""
        text = f"a request of one token got no answer in {waited_s:.0f} s"
        return LivenessVerdict(trouble=text)


def _idle(pulse: Pulse) -> bool:
    """Whether nothing suggests that anybody waits for it."""
    return pulse.healthy and not pulse.requests and pulse.connections == 0
