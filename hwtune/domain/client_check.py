"""Whether the load client measures truly, judged against a server whose timing is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hwtune.domain.bench import RequestRecord
from hwtune.domain.stats import mean

TTFT_MEAN_LIMIT: Final = 0.02
TTFT_P99_LIMIT: Final = 0.20
TPOT_MEAN_LIMIT: Final = 0.01
DELIVERED_LIMIT: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What the mock server is told to do."""

    ttft_s: float
    tpot_s: float
    output_tokens: int

    @property
    def e2el_s(self) -> float:
        """TTFT + (output tokens - 1) x TPOT."""
        return self.ttft_s + (self.output_tokens - 1) * self.tpot_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A mean and a tail, as the client reported them and as they were."""

    mean_s: float
    p99_s: float
    true_mean_s: float
    true_p99_s: float

    @property
    def mean_error(self) -> float:
        """|reported / true - 1|."""
        return abs(self.mean_s / self.true_mean_s - 1.0)

    @property
    def p99_error(self) -> float:
        """|reported / true - 1|."""
        return abs(self.p99_s / self.true_p99_s - 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCheck:
    """What the client reported at one concurrency, next to the truth.

    The truth is what the mock really did: it writes the time into its first and last token, and
    both processes read one clock. How late the mock was against its own plan is told apart.
    """

    streams: int
    requests: int
    failed: int
    ttft: Shown
    tpot: Shown
    delivered: float
    """Ideal duration / real duration: the share of tokens that came in time."""
    cpu_s: float
    """Processor time of the client."""
    mock_ttft_s: float
    """Mean TTFT as the mock delivered it; its plan says ``Truth.ttft_s``."""
    problems: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether this machine can measure at this concurrency."""
        return not self.problems


def check_client(
    streams: int, records: Sequence[RequestRecord], truth: Truth, *, cpu_s: float
) -> ClientCheck:
    """Judges one run of the client. Answers must carry the mock's clock as their text.

    Raises:
        ValueError: not one request succeeded.
    """
    good = [record for record in records if record.failure is None]
    if not good:
        message = f"no request succeeded: {records[0].failure} {records[0].detail}"
        raise ValueError(message)
    times = [_written(record) for record in good]
    gaps = truth.output_tokens - 1
    ttft = _shown(
        [record.ttft_s or 0.0 for record in good],
        [first - record.started_unix_s for record, (first, _) in zip(good, times, strict=True)],
    )
    tpot = _shown(
        [record.tpot_s or 0.0 for record in good], [(last - first) / gaps for first, last in times]
    )
    delivered = len(good) / len(records) * _ideal_over_real(streams, records, truth)
    found = (
        (len(good) < len(records), f"{len(records) - len(good)} requests failed"),
        (ttft.mean_error > TTFT_MEAN_LIMIT, "TTFT mean"),
        (ttft.p99_error > TTFT_P99_LIMIT, "TTFT p99"),
        (tpot.mean_error > TPOT_MEAN_LIMIT, "TPOT mean"),
        (delivered < DELIVERED_LIMIT, "delivered tokens"),
    )
    return ClientCheck(
        streams=streams,
        requests=len(records),
        failed=len(records) - len(good),
        ttft=ttft,
        tpot=tpot,
        delivered=min(delivered, 1.0),
        cpu_s=cpu_s,
        mock_ttft_s=ttft.true_mean_s,
        problems=tuple(text for bad, text in found if bad),
    )


def _written(record: RequestRecord) -> tuple[float, float]:
    """When the mock wrote the first and the last token."""
    words = record.text.split()
    return float(words[0]), float(words[-1])


def _shown(reported: Sequence[float], true: Sequence[float]) -> Shown:
    return Shown(
        mean_s=mean(reported),
        p99_s=quantile(reported, 0.99),
        true_mean_s=mean(true),
        true_p99_s=quantile(true, 0.99),
    )


def _ideal_over_real(streams: int, records: Sequence[RequestRecord], truth: Truth) -> float:
    rounds = math.ceil(len(records) / streams)
    first = min(record.started_unix_s for record in records)
    last = max(record.ended_unix_s for record in records)
    return rounds * truth.e2el_s / max(last - first, 1e-9)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
