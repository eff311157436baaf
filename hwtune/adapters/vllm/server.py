"""Runs the vLLM server of a launch plan, and keeps everything it says."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import http.client
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hwtune.adapters.vllm.processes import spawn, stop_tree
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

Echo = Callable[[str], None]


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

    def alive(self) -> bool:
        """Whether the server still runs."""
        return self.child.poll() is None

    def scrape(self) -> str | None:
        """Stores the Prometheus page in the run directory and returns it; None when it is gone."""
        text = _get(f"{self.url}/metrics")
        if text is not None:
            write_quietly(self.run_dir / METRICS_FILE, text)
        return text


class LogCopy:
    """Copies a child's output to a file and, if asked, to the terminal, as it comes.

    A disk that fills up costs the log, not the server: ``lost`` says so.
    """

    def __init__(self, child: subprocess.Popen[bytes], path: Path, echo: Echo | None) -> None:
        self.lost: str | None = None
        self._child = child
        self._path = path
        self._echo = echo
        self._thread = threading.Thread(target=self._copy, name="hwtune-log", daemon=True)
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Waits until the child's output has ended, and lets go of it."""
        self._thread.join(timeout_s)
        if self._child.stdout is not None and not self._thread.is_alive():
            self._child.stdout.close()

    def _copy(self) -> None:
        """Reads to the end whatever becomes of file and terminal: a full pipe blocks the server."""
        assert self._child.stdout is not None
        with contextlib.ExitStack() as files:
            write = self._open(files)
            for line in self._child.stdout:
                if write is not None and self.lost is None:
                    self._keep(write, line)
                self._show(line)

    def _open(self, files: contextlib.ExitStack) -> Callable[[bytes], object] | None:
        try:
            return files.enter_context(self._path.open("ab", buffering=0)).write
        except OSError as error:
            self.lost = f"{self._path}: {error.strerror}"
            return None

    def _keep(self, write: Callable[[bytes], object], line: bytes) -> None:
        try:
            write(line)
        except OSError as error:
            self.lost = f"{self._path}: {error.strerror}"

    def _show(self, line: bytes) -> None:
        if self._echo is None:
            return
        try:
            self._echo(line.decode("utf-8", "replace").rstrip("\n"))
        except (OSError, ValueError):
            self._echo = None  # the reader of our output has gone


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
    _require_free_port(plan)
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
        write_status(run_dir, status)
        write_environment(surroundings(environment), run_dir)
        _wait_until_healthy(server, ready_timeout_s)
        server.scrape()
        status = dataclasses.replace(status, state="ready")
        write_status(run_dir, status)
        yield server
    finally:
        with _uninterrupted():
            _finish(server, status)


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
    if state == "stopped" and status.state == "ready":
        server.scrape()
    stop_tree(server.child)
    server.log.join(timeout_s=5.0)
    reason = server.reason or ("stopped by hwtune" if exit_code is None else "ended by itself")
    if server.log.lost:
        reason += f"; log incomplete: {server.log.lost}"
    final = dataclasses.replace(
        status, state=state, ended_at=_now(), exit_code=server.child.poll(), reason=reason
    )
    write_status(server.run_dir, final)


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
            raise ExternalFailureError(message)
        if _get(f"{server.url}/health") is not None:
            return
        time.sleep(POLL_INTERVAL_S)
    server.reason = f"not healthy after {timeout_s:g} s"
    message = (
        f"vLLM was not healthy after {timeout_s:g} s (raise --ready-timeout if it is only slow); "
        f"log: {server.run_dir / LOG_FILE}"
    )
    raise ExternalFailureError(message)


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


def _require_free_port(plan: LaunchPlan) -> None:
    with socket.socket(_family(plan.host)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((plan.host, plan.port))
        except OSError as error:
            message = (
                f"{plan.host}:{plan.port}: cannot listen there ({error.strerror}); "
                "stop what uses the port, or give another with --port"
            )
            raise ExternalFailureError(message) from None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _address(host: str) -> str:
    """Where to reach a server that listens on ``host``."""
    local = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    return f"[{local}]" if ":" in local and not local.startswith("[") else local


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
