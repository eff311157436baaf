"""Launch constants from a profile's ``[kernels.tuning]`` table. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


def tuning_from(
    kind: type[T],
    values: Mapping[str, int],
    powers_of_two: tuple[str, ...],
    switches: tuple[str, ...] = (),
) -> T:
    """A tuning of this kind; absent keys keep their defaults.

    Args:
        kind: a dataclass of whole numbers.
        values: what a profile says.
        powers_of_two: keys whose value must be one.
        switches: keys that are 0 or 1.

    Raises:
        ValueError: an unknown key, or a value that such a key cannot have.
    """
    shape: Any = kind
    known = [field.name for field in fields(shape)]
    for name, value in values.items():
        if name not in known:
            message = f"no tuning is called {name!r}; known: {', '.join(sorted(known))}"
            raise ValueError(message)
        if name in switches:
            if value not in (0, 1):
                message = f"tuning {name} must be 0 or 1, not {value}"
                raise ValueError(message)
        elif value < 1:
            message = f"tuning {name} must be at least 1, not {value}"
            raise ValueError(message)
        elif name in powers_of_two and value & (value - 1):
            message = f"tuning {name} must be a power of two, not {value}"
            raise ValueError(message)
    return kind(**values)


def tile_of(block_size: int, largest: int, smallest: int = 16) -> int:
    """The largest power of two that divides the page, at most ``largest``.

    Raises:
        ValueError: the page is not a multiple of ``smallest``.
    """
    divisor = block_size & -block_size
    if divisor < smallest:
        message = f"page {block_size} is not a multiple of {smallest}"
        raise ValueError(message)
    return min(divisor, largest)
