"""``hwtune serve`` from start to end: launch, verify, stay up, stop, and say what happened."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from hwtune.adapters.vllm.log_copy import Echo
from hwtune.adapters.vllm.probe import ask_one_token, probe
from hwtune.adapters.vllm.server import (
    POLL_INTERVAL_S,
    NotServingError,
    RunningServer,
    ServerFailedError,
    serve,
)
from hwtune.adapters.vllm.verify import cause_of_death, verify_run
from hwtune.adapters.vllm.watch import Watch
from hwtune.domain.errors import ANSWER_IS_NO, ExternalFailureError, HwtuneError
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
    patience_s: float
    """How long a server may do nothing although it should, in seconds; 0 does not watch for it."""
    stop_when_stuck: bool
    """Stop a server that does nothing although it should."""


def run_session(
    plan: LaunchPlan, run_dir: Path, options: SessionOptions, *, echo: Echo | None, say: Say
) -> int:
    """Serves until stopped; returns the exit status.

    Raises:
        InputError: the run directory already holds a run.
        ExternalFailureError: vLLM died or was stuck; the message has the first cause.
    """
    with _first_cause(plan, run_dir):
        starting = serve(plan, run_dir, echo=echo, ready_timeout_s=options.ready_timeout_s)
        with _losses_said(starting, say) as server:
            report, failed_probe = _verify(server, options, say)
            if failed_probe is not None and not options.keep_going:
                server.reason = failed_probe
                raise ExternalFailureError(failed_probe)
            if not report.passed and not options.keep_going:
                server.reason = f"not what was planned: {report.summary}"
                return ANSWER_IS_NO
            if not options.stop_when_verified:
                _stay_up(server, options, say)
    final = verify_run(run_dir, require_kernel_hits=False, plan=plan)
    if final.summary != report.summary:
        say(f"at its end: {final.summary}")
    return 0 if report.passed and final.passed else ANSWER_IS_NO


@contextlib.contextmanager
def _losses_said(
    starting: AbstractContextManager[RunningServer], say: Say
) -> Iterator[RunningServer]:
    """The server; when it has ended, says what evidence was lost and not spoken of before."""
    before: tuple[str, ...] = ()
    server: RunningServer | None = None
    try:
        with starting as server:
            try:
                yield server
            finally:
                before = server.losses
    finally:
        for loss in server.losses[len(before) :] if server is not None else ():
            say(f"evidence lost: {loss}")


@contextlib.contextmanager
def _first_cause(plan: LaunchPlan, run_dir: Path) -> Iterator[None]:
    """Puts the first cause from the log in front of a failure's message, and judges once more."""
    try:
        yield
    except NotServingError:
        _judge_again(plan, run_dir)
        raise
    except ExternalFailureError as error:
        _judge_again(plan, run_dir)
        tail = error.log.tail() if isinstance(error, ServerFailedError) else ()
        cause = cause_of_death(run_dir, tail)
        if cause is None:
            raise
        message = f"{cause} — {error}"
        raise ExternalFailureError(message) from None


def _judge_again(plan: LaunchPlan, run_dir: Path) -> None:
    """So that ``report.json`` speaks of the whole run."""
    if run_dir.is_dir():
        with contextlib.suppress(HwtuneError):
            verify_run(run_dir, require_kernel_hits=False, plan=plan)


def _verify(
    server: RunningServer, options: SessionOptions, say: Say
) -> tuple[MarkerReport, str | None]:
    """The report, and why the probe failed if it did."""
    failed_probe = probe(server) if options.send_probe else None
    server.scrape()
    report = verify_run(
        server.run_dir,
        require_kernel_hits=options.send_probe and failed_probe is None,
        plan=server.plan,
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


def _stay_up(server: RunningServer, options: SessionOptions, say: Say) -> None:
    """Returns when asked to stop.

    Raises:
        ServerFailedError: the server ended by itself.
        NotServingError: it was stuck when it had to end.
    """
    question = functools.partial(ask_one_token, server) if options.send_probe else None
    watch = Watch(server, options.patience_s, question)
    try:
        say(f"serving at {server.url}; Ctrl-C stops it")
        while server.alive():
            watch.wait(POLL_INTERVAL_S)
            for news in watch.look():
                say(news)
            _note_trouble(server, watch.trouble)
            if watch.trouble and options.stop_when_stuck:
                break
    except KeyboardInterrupt:
        server.reason = "asked to stop"
    _note_trouble(server, watch.trouble)
    if watch.trouble and server.alive():
        server.reason = f"stuck: {watch.trouble}"
        message = f"the server was stuck: {watch.trouble}"
        raise NotServingError(message)
    if server.reason is None:
        first = f"; the first to end was {watch.gone[0]}" if watch.gone else ""
        message = (
            f"vLLM ended without being asked to (exit status {server.child.returncode}){first}"
        )
        server.reason = message
        raise ServerFailedError(message, server.log)


def _note_trouble(server: RunningServer, trouble: str | None) -> None:
    status = server.status
    if status is not None and status.trouble != trouble:
        server.set_status(dataclasses.replace(status, trouble=trouble))
