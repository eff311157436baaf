"""A result file of any client: one workload on one server, request by request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hwtune.domain.bench_metrics import E2EL, TPOT, TTFT, Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRequest:
    """One request of a saved run."""

    input_tokens: int
    output_tokens: int
    ttft_s: float
    e2el_s: float
    text: str | None
    error: str
    start_s: float | None = None
    """When it was sent, on any clock that all requests of its run share."""
    key: str | None = None
    """Name of its prompt, where the file tells; else requests pair by their order."""

    @property
    def tpot_s(self) -> float:
        """(E2EL - TTFT) / (output tokens - 1); 0 with fewer than two tokens."""
        return (
            (self.e2el_s - self.ttft_s) / (self.output_tokens - 1) if self.output_tokens > 1 else 0
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRun:
    """One result file: one workload on one server."""

    source: str
    sha256: str
    workload: dict[str, object]
    """Model, concurrency, request rate: must be equal in both."""
    requests: tuple[SavedRequest, ...]
    output_throughput: float
    started_unix_s: float | None = None
    ended_unix_s: float | None = None
    repetitions: tuple[SavedRun, ...] = ()
    """The runs that this one is the mean of; empty for a single one."""

    @property
    def parts(self) -> tuple[SavedRun, ...]:
        """Its repetitions, or itself."""
        return self.repetitions or (self,)

    def same_times(self, other: SavedRun) -> bool:
        """Whether both hold the same measurement: no two runs take equally long to the last digit."""
        times = [
            [(r.ttft_s, r.e2el_s) for r in run.requests if not r.error] for run in (self, other)
        ]
        return times[0] == times[1] if any(times) else self.sha256 == other.sha256


LATENCIES: tuple[tuple[Metric, Callable[[SavedRequest], float]], ...] = (
    (TTFT, lambda request: request.ttft_s),
    (TPOT, lambda request: request.tpot_s),
    (E2EL, lambda request: request.e2el_s),
)

Pair = tuple[SavedRequest, SavedRequest]
"""What both sides answered to the same prompt."""
