"""Runs the vLLM server of a launch plan, and keeps everything it says."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import http.client
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hwtune.adapters.vllm.log_copy import Echo, LogCopy
from hwtune.adapters.vllm.ports import port_use, require_free_port
from hwtune.adapters.vllm.processes import family, spawn, stop_tree
from hwtune.adapters.vllm.surroundings import surroundings
from hwtune.domain.errors import ExternalFailureError
from hwtune.domain.launch import PLAN_ENVIRONMENT_VARIABLE, LaunchPlan
from hwtune.io.environment import write_environment
from hwtune.io.plans import write_plan
from hwtune.io.run_dir import (
    LOG_FILE,
    METRICS_FILE,
    ServerStatus,
    State,
    create_run_dir,
    write_quietly,
    write_status,
)

POLL_INTERVAL_S = 0.25
REQUEST_TIMEOUT_S = 5.0


@dataclass(slots=True, kw_only=True)
class RunningServer:
    """A server that is up."""

    plan: LaunchPlan
    run_dir: Path
    url: str
    child: subprocess.Popen[bytes]
    log: LogCopy
    reason: str | None = None
    """Why it is being stopped; set by who stops it."""
    status: ServerStatus | None = None
    """As last written to the run directory."""
    losses: tuple[str, ...] = ()
    """Evidence that could not be kept, and why."""

    def alive(self) -> bool:
        """Whether the server still runs."""
        return self.child.poll() is None

    def scrape(self) -> str | None:
        """Stores the Prometheus page in the run directory and returns it; None when it is gone."""
        text = _get(f"{self.url}/metrics")
        if text is not None:
            self._note(write_quietly(self.run_dir / METRICS_FILE, text))
        return text

    def set_status(self, status: ServerStatus) -> None:
        """Writes down how far the server got."""
        self.status = dataclasses.replace(status, evidence_lost=self.losses)
        self._note(write_status(self.run_dir, self.status))

    def note_losses(self) -> tuple[str, ...]:
        """Evidence found lost since it was last asked; the status file says so too."""
        before = self.losses
        if not self.run_dir.is_dir():
            self._note(f"{self.run_dir}: deleted while the server ran")
        else:
            self._note(self.log.lost)
        new = self.losses[len(before) :]
        if new and self.status is not None:
            self.set_status(self.status)
        return new

    def _note(self, loss: str | None) -> None:
        if loss is not None and loss not in self.losses:
            self.losses = (*self.losses, loss)


class NotServingError(ExternalFailureError):
    """A server runs and does not serve; the message says why, and the log knows no more."""


class ServerFailedError(ExternalFailureError):
    """A server ended or did not come up; ``log`` has its last lines, whatever became of the file."""

    def __init__(self, message: str, log: LogCopy) -> None:
        super().__init__(message)
        self.log = log


@contextlib.contextmanager
def serve(
    plan: LaunchPlan, run_dir: Path, *, echo: Echo | None = None, ready_timeout_s: float = 900.0
) -> Iterator[RunningServer]:
    """Starts the plan's server, gives it once it is healthy, and leaves no process behind.

    Args:
        plan: what to start.
        run_dir: a directory for this run alone; created.
        echo: gets each line of the server's output.
        ready_timeout_s: how long start-up may take, in seconds.

    Raises:
        InputError: the run directory already holds a run.
        ExternalFailureError: the port is taken, or the server died or did not become healthy.
    """
    require_free_port(plan.host, plan.port)
    run_dir = create_run_dir(run_dir)
    plan_path = _write_plan(plan, run_dir)
    environment = {**os.environ, PLAN_ENVIRONMENT_VARIABLE: str(plan_path), **plan.environment}
    child = spawn(plan.argv, environment)
    server = RunningServer(
        plan=plan,
        run_dir=run_dir,
        url=f"http://{_address(plan.host)}:{plan.port}",
        child=child,
        log=LogCopy(child, run_dir / LOG_FILE, echo),
    )
    status = _status(server, "starting", started_at=_now())
    try:
        server.set_status(status)
        write_environment(surroundings(environment), run_dir)
        _wait_until_healthy(server, ready_timeout_s)
        server.scrape()
        server.set_status(dataclasses.replace(status, state="ready"))
        yield server
    finally:
        with _uninterrupted():
            _finish(server, server.status or status)


def _write_plan(plan: LaunchPlan, run_dir: Path) -> Path:
    try:
        return write_plan(plan, run_dir)
    except OSError as error:
        message = f"{run_dir}: cannot write the plan: {error.strerror}"
        raise ExternalFailureError(message) from None


def _finish(server: RunningServer, status: ServerStatus) -> None:
    """Last evidence, then the end of every process, then the final status."""
    exit_code = server.child.poll()
    state: State = "stopped" if exit_code is None else "died"
    if state == "stopped" and status.state == "ready" and status.trouble is None:
        server.scrape()
    stop_tree(server.child)
    server.log.join(timeout_s=5.0)
    reason = server.reason or ("stopped by hwtune" if exit_code is None else "ended by itself")
    server.note_losses()
    final = dataclasses.replace(
        status, state=state, ended_at=_now(), exit_code=server.child.poll(), reason=reason
    )
    server.set_status(final)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """A second Ctrl-C must not cut the end short, or workers would stay behind."""
    stops = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _status(server: RunningServer, state: State, *, started_at: str) -> ServerStatus:
    return ServerStatus(
        state=state,
        url=server.url,
        pid=server.child.pid,
        owner_pid=os.getpid(),
        started_at=started_at,
    )


def _wait_until_healthy(server: RunningServer, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not server.alive():
            server.log.join(timeout_s=5.0)
            message = (
                f"vLLM ended with status {server.child.returncode} during start-up; "
                f"log: {server.run_dir / LOG_FILE}"
            )
            raise ServerFailedError(message, server.log)
        if _get(f"{server.url}/health") is not None and _is_ours(server):
            return
        time.sleep(POLL_INTERVAL_S)
    server.reason = f"not healthy after {timeout_s:g} s"
    message = (
        f"vLLM was not healthy after {timeout_s:g} s (raise --ready-timeout if it is only slow); "
        f"log: {server.run_dir / LOG_FILE}"
    )
    raise ServerFailedError(message, server.log)


def _is_ours(server: RunningServer) -> bool:
    """Whether the one that answers is this server, and nobody else on its port.

    Raises:
        NotServingError: another process took the port, or shares it.
    """
    plan = server.plan
    use = port_use(plan.host, plan.port, family(server.child.pid))
    if use.ours is None or (use.ours and not use.strangers):
        return True
    if not use.strangers:
        return False
    server.reason = f"port {plan.port} is taken by {', '.join(use.strangers)}"
    message = f"{server.reason}: requests would go there; stop it, or give another --port"
    raise NotServingError(message)


def ask(request: str | urllib.request.Request, timeout_s: float) -> bytes:
    """Body of the answer to a URL or request.

    Without a proxy: the server is on this machine, whatever the environment says.

    Raises:
        OSError: nothing answers in time, or the answer is an HTTP error or breaks off.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as response:
            body: bytes = response.read()
            return body
    except http.client.HTTPException as error:
        raise OSError(repr(error)) from error


def _get(url: str) -> str | None:
    try:
        return ask(url, REQUEST_TIMEOUT_S).decode("utf-8", "replace")
    except (OSError, ValueError):
        return None


def _address(host: str) -> str:
    """Where to reach a server that listens on ``host``."""
    local = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    return f"[{local}]" if ":" in local and not local.startswith("[") else local


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
