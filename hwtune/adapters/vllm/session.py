"""``hwtune serve`` from start to end: launch, verify, stay up, stop, and say what happened."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hwtune.adapters.vllm.probe import probe
from hwtune.adapters.vllm.server import POLL_INTERVAL_S, Echo, RunningServer, serve
from hwtune.adapters.vllm.verify import cause_of_death, verify_run
from hwtune.domain.errors import ANSWER_IS_NO, ExternalFailureError
from hwtune.domain.launch import LaunchPlan
from hwtune.domain.markers import MarkerReport

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """What the user decides about a session."""

    ready_timeout_s: float
    keep_going: bool
    """Keep serving even if the server is not what was planned."""
    stop_when_verified: bool
    send_probe: bool


def run_session(
    plan: LaunchPlan, run_dir: Path, options: SessionOptions, *, echo: Echo | None, say: Say
) -> int:
    """Serves until stopped; returns the exit status.

    Raises:
        InputError: the run directory already holds a run.
        ExternalFailureError: vLLM died; the message has the first cause.
    """
    with _first_cause(run_dir):
        with serve(plan, run_dir, echo=echo, ready_timeout_s=options.ready_timeout_s) as server:
            report, failed_probe = _verify(server, options, say)
            if failed_probe is not None and not options.keep_going:
                server.reason = failed_probe
                raise ExternalFailureError(failed_probe)
            if not report.passed and not options.keep_going:
                server.reason = f"not what was planned: {report.summary}"
                return ANSWER_IS_NO
            if not options.stop_when_verified:
                say(f"serving at {server.url}; Ctrl-C stops it")
                _stay_up(server)
        return 0 if report.passed else ANSWER_IS_NO


@contextlib.contextmanager
def _first_cause(run_dir: Path) -> Iterator[None]:
    """Puts the first cause from the log in front of a failure's message."""
    try:
        yield
    except ExternalFailureError as error:
        cause = cause_of_death(run_dir) if run_dir.is_dir() else None
        if cause is None:
            raise
        message = f"{cause} — {error}"
        raise ExternalFailureError(message) from None


def _verify(
    server: RunningServer, options: SessionOptions, say: Say
) -> tuple[MarkerReport, str | None]:
    """The report, and why the probe failed if it did."""
    failed_probe = probe(server) if options.send_probe else None
    server.scrape()
    report = verify_run(
        server.run_dir, require_kernel_hits=options.send_probe and failed_probe is None
    )
    say(f"{_verdict(report)} ({report.summary})")
    for item in report.failed:
        say(f"  {item.name}: expected {item.expected}, seen {item.seen} — {item.reason}")
        for cause in item.diagnosis[:1]:
            say(f"    likely cause: {cause.text}; next: {cause.next_step}")
    return report, failed_probe


def _verdict(report: MarkerReport) -> str:
    if not report.passed:
        return "the server is NOT what was planned"
    seen = [f"{item.name} {item.seen}" for item in report.checks if item.status == "passed"]
    return f"the server is what was planned: {', '.join(seen)}"


def _stay_up(server: RunningServer) -> None:
    """Returns when asked to stop.

    Raises:
        ExternalFailureError: the server ended by itself.
    """
    try:
        while server.alive():
            time.sleep(POLL_INTERVAL_S)
    except KeyboardInterrupt:
        server.reason = "asked to stop"
        return
    message = f"vLLM ended without being asked to (exit status {server.child.returncode})"
    raise ExternalFailureError(message)
