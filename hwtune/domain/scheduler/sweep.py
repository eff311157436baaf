"""The same question at several settings: which axes there are, and where a hit rate falls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Final, Literal, get_args

from hwtune.domain.errors import UsageError
from hwtune.domain.scheduler.prediction import Forecast
from hwtune.domain.units import LARGEST_SIZE

AxisName = Literal["concurrency", "budget", "page", "chunk"]
Setting = Mapping[AxisName, int]

AXIS_TITLES: Final[Mapping[AxisName, str]] = {
    "concurrency": "requests in flight",
    "budget": "max_num_batched_tokens",
    "page": "page in tokens",
    "chunk": "long-prefill threshold",
}
_MOST_POINTS: Final = 1000


def parse_sweep(texts: Iterable[str]) -> dict[AxisName, tuple[int, ...]]:
    """``concurrency=1,2,4,8`` each; several axes are combined.

    Raises:
        UsageError: an unknown axis, no numbers, or too many combinations.
    """
    axes: dict[AxisName, tuple[int, ...]] = {}
    for text in texts:
        for word in text.split():
            name, _, numbers = word.partition("=")
            axis = _axis(name, word)
            if axis in axes:
                message = f"--sweep {word[:60]}: {axis} is given twice; name all values at once"
                raise UsageError(message)
            axes[axis] = _values(word, numbers)
    if not axes:
        message = (
            f"--sweep: names no axis; expected AXIS=N,N,… with {', '.join(get_args(AxisName))}"
        )
        raise UsageError(message)
    points = 1
    for values in axes.values():
        points *= len(values)
    if points > _MOST_POINTS:
        message = f"--sweep: {points:,} combinations; at most {_MOST_POINTS:,} are played"
        raise UsageError(message)
    return axes


def _axis(name: str, word: str) -> AxisName:
    for known in get_args(AxisName):
        if name == known:
            axis: AxisName = known
            return axis
    message = f"--sweep {word[:60]}: expected AXIS=N,N,… with {', '.join(get_args(AxisName))}"
    raise UsageError(message)


def _values(word: str, text: str) -> tuple[int, ...]:
    try:
        values = sorted({int(part) for part in text.split(",")})
    except ValueError:
        values = []
    if not values or values[0] < 1 or values[-1] > LARGEST_SIZE:
        message = f"--sweep {word[:60]}: expected whole numbers from 1 up, such as 1,2,4,8"
        raise UsageError(message)
    return tuple(values)


def settings(axes: Mapping[AxisName, Sequence[int]]) -> tuple[dict[AxisName, int], ...]:
    """Every combination, the last axis fastest."""
    names = tuple(axes)
    return tuple(
        dict(zip(names, values, strict=True)) for values in product(*(axes[name] for name in names))
    )


def first_below(
    values: Sequence[int], rate: Callable[[int], float | None], limit: float
) -> int | None:
    """The smallest value at which a rate falls below ``limit``; None when it never does.

    Between the last value at or above and the first value below, every whole number in between
    is a candidate: the gap is halved until it is closed, so the answer need not be one of
    ``values``. A rate that comes and goes inside the gap may be missed.
    """
    above: int | None = None
    for value in sorted(values):
        found = rate(value)
        if found is None:
            continue
        if found >= limit:
            above = value
            continue
        return value if above is None else _close(above, value, rate, limit)
    return None


def _close(above: int, below: int, rate: Callable[[int], float | None], limit: float) -> int:
    while below - above > 1:
        middle = (above + below) // 2
        found = rate(middle)
        if found is not None and found < limit:
            below = middle
        else:
            above = middle
    return below


def hit_rate(forecast: Forecast, kernel: str) -> float | None:
    """Of one kernel, over the steps it is made for."""
    found = forecast.kernel(kernel)
    return None if found is None else found.hit_rate
