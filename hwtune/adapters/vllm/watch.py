"""Watches a server that is up: does it work, is its evidence kept, are its processes all there?"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from hwtune.adapters.vllm.ports import PortUse, port_use
from hwtune.adapters.vllm.processes import family
from hwtune.adapters.vllm.server import RunningServer, ask
from hwtune.domain.errors import InputError
from hwtune.domain.liveness import Liveness, LivenessVerdict, Pulse
from hwtune.domain.metrics import parse_metrics
from hwtune.io.counters import read_counters

Ask = Callable[[float], str | None]
"""Sends a request of one token, waits so many seconds, and says why it failed, or None."""

_SLOWEST_LOOK_S, _QUICKEST_LOOK_S = 60.0, 1.0
_LOOKS_PER_PATIENCE = 6
_HTTP_TIMEOUT_S = 5.0
_TOKENS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
_REQUESTS = ("vllm:num_requests_running", "vllm:num_requests_waiting")
_ENGINE_NAMES = "vllm::"
"""How vLLM's processes call themselves (0.10 and newer, utils/system_utils.py): VLLM::EngineCore,
VLLM::Worker_TP0."""
_ODD_STATES = {"T": "stopped", "t": "held by a debugger", "D": "stuck in the kernel or a driver"}


class Watch:
    """Looks at one server from time to time.

    Args:
        server: the server.
        patience_s: how long it may do nothing although it should, in seconds; 0 looks at its
            processes and evidence only.
        question: how to ask it for one token; None when no request of our own may be sent.
    """

    def __init__(
        self,
        server: RunningServer,
        patience_s: float,
        question: Ask | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.trouble: str | None = None
        """What is wrong at the moment; None when nothing is known to be."""
        self.gone: tuple[str, ...] = ()
        """vLLM's own processes that ended while the server still ran, in that order."""
        self._server = server
        self._patience_s = patience_s
        self._question = question
        self._clock = clock
        self._liveness = Liveness(patience_s)
        self._names: dict[int, str] = {}
        self._tokens = 0.0
        self._next_count = self._next_look = clock()
        self._since = clock()
        self._processes()  # one that ends before the first look must be known by then

    def look(self) -> tuple[str, ...]:
        """Sentences that are news since the last look; most looks find nothing, at little cost."""
        now = self._clock()
        news: list[str] = []
        if now >= self._next_count:
            self._next_count = now + _QUICKEST_LOOK_S
            news += self._processes()
            news += [f"evidence lost: {loss}" for loss in self._server.note_losses()]
        if self._patience_s and now >= self._next_look:
            news += self._work()
            step = self._patience_s / _LOOKS_PER_PATIENCE
            wait_s = min(_SLOWEST_LOOK_S, max(_QUICKEST_LOOK_S, step))
            self._next_look = self._clock() + wait_s
        return tuple(news)

    def wait(self, seconds: float) -> None:
        """Sleeps; wakes to look when a process of vLLM's ends, before those that follow it do."""
        engines = [pid for pid, name in self._names.items() if _is_engine(name)]
        if _one_ends(engines, seconds):
            self._next_count = self._clock()

    def _processes(self) -> list[str]:
        pids = family(self._server.child.pid)
        gone = [name for pid, name in self._names.items() if pid not in pids]
        self._names = {pid: self._names.get(pid) or _name(pid) for pid in pids}
        lost = [name for name in gone if _is_engine(name)]
        self.gone = (*self.gone, *lost)
        return [f"{name} ended while the server still ran" for name in lost]

    def _work(self) -> list[str]:
        use = self._port_use()
        shared = ", ".join(use.strangers)
        if shared:
            port = self._server.plan.port
            return self._change(f"{shared} listens on port {port} too and gets its connections")
        verdict = self._liveness.feed(self._pulse(use.connections))
        if verdict.ask:
            verdict = self._ask()
        return self._change(verdict.trouble)

    def _port_use(self) -> PortUse:
        plan = self._server.plan
        return port_use(plan.host, plan.port, self._names)

    def _ask(self) -> LivenessVerdict:
        if self._question is None:
            return LivenessVerdict()
        started = self._clock()
        failed = self._question(self._patience_s)
        if failed is None:
            self._liveness.answered(self._clock())
            return LivenessVerdict()
        return self._liveness.unanswered(self._clock() - started)

    def _change(self, trouble: str | None) -> list[str]:
        before, self.trouble = self.trouble, trouble and f"{trouble}{self._odd()}"
        if trouble and not before:
            self._since = self._clock()
            return [f"the server is stuck: {self.trouble}"]
        if before and not trouble:
            return [f"the server works again after {self._clock() - self._since:.0f} s"]
        return []

    def _odd(self) -> str:
        """Processes in a state that explains why nothing happens."""
        found = [
            f"{name or f'pid {pid}'} is {state}"
            for pid, name in self._names.items()
            if (state := _odd(pid))
        ]
        return f" ({', '.join(found)})" if found else ""

    def _pulse(self, connections: int | None) -> Pulse:
        timeout_s = min(_HTTP_TIMEOUT_S, self._patience_s)
        healthy = _get(f"{self._server.url}/health", timeout_s) is not None
        metrics = _get(f"{self._server.url}/metrics", timeout_s) if healthy else None
        requests = None
        if metrics is not None:
            totals = _totals(metrics)
            self._tokens = sum(totals.get(name, 0.0) for name in _TOKENS)
            counted = [totals[name] for name in _REQUESTS if name in totals]
            requests = int(sum(counted)) if counted else None
        return Pulse(
            at_s=self._clock(),
            log_bytes=self._server.log.bytes_seen,
            healthy=healthy,
            progress=self._tokens + self._attention_calls(),
            requests=requests,
            connections=connections,
        )

    def _attention_calls(self) -> int:
        """Calls that the plugin counted: a long prompt makes no token for a while."""
        with contextlib.suppress(InputError, OSError):
            return sum(count.calls for count in read_counters(self._server.run_dir))
        return 0


def _totals(metrics: str) -> dict[str, float]:
    totals: dict[str, float] = {}
    for sample in parse_metrics(metrics):
        if sample.name in _TOKENS or sample.name in _REQUESTS:
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    return totals


def _get(url: str, timeout_s: float) -> str | None:
    try:
        return ask(url, timeout_s).decode("utf-8", "replace")
    except (OSError, ValueError):
        return None


def _is_engine(name: str) -> bool:
    return name.lower().startswith(_ENGINE_NAMES)


def _one_ends(pids: Iterable[int], seconds: float) -> bool:
    """Whether one of the processes has ended within the time, or had before."""
    poll = select.poll()
    with contextlib.ExitStack() as handles:
        try:
            for pid in pids:
                handle = os.pidfd_open(pid)
                handles.callback(os.close, handle)
                poll.register(handle, select.POLLIN)
        except ProcessLookupError:
            return True
        except OSError:  # an old kernel, or a container that forbids it
            time.sleep(seconds)
            return False
        return bool(poll.poll(seconds * 1000))


def _name(pid: int) -> str:
    """As ``ps`` shows it, with the process id; empty for one that an engine forked and that still
    bears the engine's name, as every helper program does for a moment."""
    title, parent = _title(pid), int(_stat(pid)[1])
    if _is_engine(title) and title == _title(parent):
        return ""
    return f"{title or '?'} (pid {pid})"


def _title(pid: int) -> str:
    try:
        first = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    except OSError:
        return ""
    return first.decode("utf-8", "replace").strip()


def _stat(pid: int) -> tuple[str, str]:
    """State and parent of a process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        state, parent = text.rpartition(")")[2].split()[:2]
    except (OSError, ValueError):
        return "", "0"
    return state, parent


def _odd(pid: int) -> str | None:
    return _ODD_STATES.get(_stat(pid)[0])
