"""Small integer arithmetic and the only place where numbers become text."""

from __future__ import annotations

LARGEST_SIZE = 2**31
"""The largest granularity, length or count that is worth a derivation."""
_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_SIZE_SUFFIXES = {"": 1, "b": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12} | {
    unit.lower(): 1024**power for power, unit in enumerate(_BINARY_UNITS) if power
}
_SIZE_SUFFIXES |= {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZE_SUFFIXES |= {"ki": 1024, "mi": 1024**2, "gi": 1024**3, "ti": 1024**4}


def ceil_div(value: int, divisor: int) -> int:
    """``value / divisor`` rounded up."""
    return -(-value // divisor)


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of ``multiple`` that is at least ``value``."""
    return multiple * ceil_div(value, multiple)


def format_bytes(count: int) -> str:
    """Bytes in the largest binary unit that keeps the number at least 1, e.g. ``3.06 MiB``."""
    value = float(count)
    for unit in _BINARY_UNITS[:-1]:
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    return f"{value:.2f} {_BINARY_UNITS[-1]}"


def format_count(value: int) -> str:
    """An integer with thousands separators."""
    return f"{value:,}"


def parse_bytes(text: str) -> int | None:
    """Bytes from ``8GiB``, ``64 GB``, ``1073741824``; None when the text is no size."""
    cleaned = text.strip().replace("_", "").replace(",", "").lower()
    digits = cleaned.rstrip("abcdefghijklmnopqrstuvwxyz ")
    factor = _SIZE_SUFFIXES.get(cleaned[len(digits) :].strip())
    try:
        value = float(digits)
    except ValueError:
        return None
    if factor is None or not 0 < value < 1e18:
        return None
    return int(value * factor)
