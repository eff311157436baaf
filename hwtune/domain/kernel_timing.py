"""One kernel against a named baseline on one shape: pairs of times, and errors before any ratio.

The scope is "kernel": the call alone, its inputs in place. It is never multiplied with a profile's
bucket or a server's latency, except in ``simulate``'s labelled prediction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from hwtune.domain.errors import UsageError
from hwtune.domain.stats import interval_of_mean, mean, median

SCOPE: Final = "kernel"
MINIMUM_PAIRS: Final = 6
Operation = Literal["prefill", "decode"]
Caches = Literal["warm", "cold", "as they are"]

_SLACK = 2.0
_LARGEST_BASELINE_ERROR = 0.05
"""Beyond it the baseline computes something else, or the device does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCase:
    """What one call computes."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    page: int
    """Tokens per page."""
    batch: int
    query: int
    """New tokens per sequence."""
    context: int
    """Tokens of every sequence, the new ones included."""
    dtype: str = "bfloat16"

    @property
    def operation(self) -> Operation:
        """A call of one token per sequence is decode."""
        return "decode" if self.query == 1 else "prefill"

    @property
    def cache_bytes(self) -> int:
        """K and V that the call must read once, in bytes."""
        return (
            2 * self._element_bytes * self.batch * self.context * self.num_kv_heads * self.head_size
        )

    @property
    def bytes_moved(self) -> int:
        """The cache once, queries in and outputs out."""
        rows = self.batch * self.query * self.num_heads * self.head_size
        return self.cache_bytes + 2 * self._element_bytes * rows

    @property
    def _element_bytes(self) -> int:
        return 4 if self.dtype == "float32" else 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CallError:
    """How far an output is from the float64 reference, over the rows that were compared."""

    max_abs: float
    relative_l2: float
    """Norm of the difference over norm of the reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Measured: one kernel and one baseline on one case."""

    kernel: str
    """Implementation, e.g. ``prefill.cpu``."""
    baseline: str
    case: CallCase
    caches: Caches
    clock: str
    """What the times are of: graph replay, events, or wall time."""
    pairs: tuple[tuple[float, float], ...]
    """(baseline, ours) in seconds, measured one right after the other in alternating order."""
    ours_error: CallError
    baseline_error: CallError
    yardstick_error: CallError
    """What FlashAttention's rounding costs on the same rows: scores in FP32, probabilities in the
    dtype of V, sums in FP32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """One line of the table."""

    sample: Sample
    baseline_us: float | None
    """Median."""
    ours_us: float | None
    speed_up: float | None
    """Baseline's time over ours, geometric mean over pairs; None without a green comparison."""
    interval: tuple[float, float] | None
    """Of the speed-up, at the confidence asked for."""
    gb_per_s: float | None
    """Bytes that must move, over our median time."""
    bandwidth_pct: float | None
    """Of the profile's memory bandwidth; None where the profile states none."""
    verdict: str
    """``faster``, ``slower``, ``no difference shown``, or why there is no ratio."""


def judge_sample(
    sample: Sample, *, confidence: float = 0.95, bandwidth_bytes_per_s: float | None = None
) -> KernelRow:
    """Times become a ratio only when the kernel is about as right as the baseline.

    Right means finite, and a relative error of at most twice the larger of the
    baseline's and the yardstick's. The interval is over pairs, as in serving.
    """
    wrong = _wrong(sample)
    base = _micro([pair[0] for pair in sample.pairs])
    ours = _micro([pair[1] for pair in sample.pairs])
    rate = sample.case.bytes_moved / (ours * 1e-6) if ours and not wrong else None
    logs = [math.log(before / after) for before, after in sample.pairs]
    interval, speed_up = None, None
    verdict = wrong or "not timed"
    if not wrong and logs:
        speed_up = math.exp(mean(logs))
        verdict = f"{len(logs)} pairs: at least {MINIMUM_PAIRS} decide"
    if not wrong and len(logs) >= MINIMUM_PAIRS:
        low, high = interval_of_mean(logs, confidence)
        interval = (math.exp(low), math.exp(high))
        verdict = "faster" if low > 0 else "slower" if high < 0 else "no difference shown"
    return KernelRow(
        sample=sample,
        baseline_us=base,
        ours_us=ours,
        speed_up=speed_up,
        interval=interval,
        gb_per_s=None if rate is None else rate / 1e9,
        bandwidth_pct=(
            None
            if rate is None or not bandwidth_bytes_per_s
            else 100 * rate / bandwidth_bytes_per_s
        ),
        verdict=verdict,
    )


def _micro(seconds: Sequence[float]) -> float | None:
    middle = median(seconds)
    return None if middle is None else middle * 1e6


def _wrong(sample: Sample) -> str:
    ours, theirs = sample.ours_error, sample.baseline_error
    if not math.isfinite(ours.max_abs) or not math.isfinite(ours.relative_l2):
        return "no ratio: output not finite"
    if not theirs.relative_l2 <= _LARGEST_BASELINE_ERROR:
        return f"no ratio: the baseline's own relative error is {theirs.relative_l2:.2g}"
    allowed = _SLACK * max(theirs.relative_l2, sample.yardstick_error.relative_l2)
    if ours.relative_l2 > allowed:
        return f"no ratio: relative error {ours.relative_l2:.2g}, at most {allowed:.2g} allowed"
    return ""


def possible_cases(cases: Sequence[CallCase]) -> tuple[list[CallCase], list[tuple[int, int]]]:
    """The cases that can be computed, and (query, context) of those with too many new tokens.

    Raises:
        UsageError: an option that no case could have, or no case is left.
    """
    for case in cases:
        numbers = {
            "--page": case.page,
            "--batch": case.batch,
            "--query": case.query,
            "--context": case.context,
        }
        for option, number in numbers.items():
            if number < 1:
                message = f"{option} {number}: must be 1 or more"
                raise UsageError(message)
    possible = [case for case in cases if case.query <= case.context]
    left_out = [(case.query, case.context) for case in cases if case.query > case.context]
    if not possible:
        query, context = left_out[0]
        message = f"--query {query}: more new tokens than the --context {context}"
        raise UsageError(message)
    return possible, list(dict.fromkeys(left_out))
