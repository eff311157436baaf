"""From a kernel's measured ratio to the change of serving speed that is to be expected.

Three scopes of time stand behind one number here, so it is only ever called a prediction: the
kernel alone (its ratio), attention as a share of serving, and serving end to end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from math import isfinite
from typing import Literal

from hwtune.domain.errors import UsageError
from hwtune.domain.scheduler.attention_work import Work
from hwtune.domain.scheduler.prediction import Forecast

Basis = Literal["flops", "bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A measured value with its interval; all three are equal when only the value is known."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedChange:
    """Change of end-to-end throughput, in percent. A prediction."""

    low_pct: float
    high_pct: float
    by_flops_pct: float
    """With the measured values themselves, if attention time went with multiply-adds."""
    by_bytes_pct: float
    """The same, if it went with bytes of cache."""


def parse_measured(flag: str, text: str) -> Measured:
    """``1.3`` or ``1.3,1.2,1.4`` (value, low, high).

    Raises:
        UsageError: no such numbers, not above 0, or out of order.
    """
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) == 1:
        numbers *= 3
    if len(numbers) != 3 or not all(isfinite(number) and number > 0 for number in numbers):
        message = f"{flag} {text[:60]}: expected VALUE or VALUE,LOW,HIGH, all above 0"
        raise UsageError(message)
    value, low, high = numbers
    if not low <= value <= high:
        message = f"{flag} {text[:60]}: the value must lie between LOW and HIGH"
        raise UsageError(message)
    return Measured(value=value, low=low, high=high)


def parse_share(flag: str, text: str) -> Measured:
    """A share of the whole, above 0 and up to 1, with or without an interval.

    Raises:
        UsageError: it is not.
    """
    share = parse_measured(flag, text)
    if share.high > 1:
        message = f"{flag} {text[:60]}: a share is at most 1; give 0.35 for 35 %"
        raise UsageError(message)
    return share


def parse_ratios(texts: Iterable[str], known: Iterable[str]) -> dict[str, Measured]:
    """``NAME=1.3,1.2,1.4`` each: how many times faster the kernel is than what it replaces.

    Raises:
        UsageError: no name, or not one of the profile's kernels.
    """
    names = tuple(known)
    ratios = {}
    for text in texts:
        name, equals, numbers = text.partition("=")
        if not equals or name not in names:
            has = (
                f"the profile's kernels are {', '.join(names)}" if names else "the profile has none"
            )
            message = f"--kernel-ratio {text[:60]}: expected NAME=RATIO; {has}"
            raise UsageError(message)
        if name in ratios:
            message = f"--kernel-ratio {text[:60]}: {name} is given twice"
            raise UsageError(message)
        ratios[name] = parse_measured("--kernel-ratio", numbers)
    return ratios


def expected_change(
    forecast: Forecast, ratios: Mapping[str, Measured], share: Measured
) -> ExpectedChange:
    """Amdahl's law over the attention that each kernel takes.

    What part of attention's time a kernel's calls take is not known before measuring. It lies
    between their part of the multiply-adds (long prompts) and of the bytes (decodes), so both are
    computed, at every corner of the measured intervals, and the interval spans them all.
    """
    bases: tuple[Basis, Basis] = ("flops", "bytes")
    names = tuple(ratios)
    corners = product(
        (share.low, share.high), *((ratios[name].low, ratios[name].high) for name in names)
    )
    changes = [
        _change(forecast, dict(zip(names, values[1:], strict=True)), values[0], basis)
        for values in corners
        for basis in bases
    ]
    middle = {name: ratio.value for name, ratio in ratios.items()}
    return ExpectedChange(
        low_pct=min(changes),
        high_pct=max(changes),
        by_flops_pct=_change(forecast, middle, share.value, "flops"),
        by_bytes_pct=_change(forecast, middle, share.value, "bytes"),
    )


def _change(forecast: Forecast, ratios: Mapping[str, float], share: float, basis: Basis) -> float:
    saved = 0.0
    for name, ratio in ratios.items():
        kernel = forecast.kernel(name)
        if kernel is not None:
            saved += work_share(kernel.work, forecast.work, basis) * (1.0 - 1.0 / ratio)
    return 100.0 * (1.0 / (1.0 - share * saved) - 1.0)


def work_share(
    part: Work, whole: Work, basis: Literal["steps", "tokens", "flops", "bytes"]
) -> float:
    """Part of the whole from 0 to 1; 0 of nothing."""
    total: int = getattr(whole, basis)
    return getattr(part, basis) / total if total else 0.0
