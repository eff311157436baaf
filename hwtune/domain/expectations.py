"""``--expect key=value`` -> an Expectation, and which facts beyond it must hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hwtune.domain.errors import UsageError
from hwtune.domain.launch import Expectation

NOTHING_EXPECTED = Expectation(
    block_size=None,
    padding_pct=None,
    enable_prefix_caching=None,
    mamba_cache_mode=None,
    backend=None,
    kernels=(),
)
_ON = ("on", "true", "yes", "1")
_OFF = ("off", "false", "no", "0")
_ALIASES = {
    "page": "block_size",
    "attention_block_size": "block_size",
    "padding": "padding_pct",
    "enable_prefix_caching": "prefix_caching",
    "attention_backend": "backend",
    "kernels": "hits",
    "version": "vllm_version",
}
BLOCK_MULTIPLE = "block_multiple"
"""What the attention page must be a multiple of, e.g. what a kernel reads at once."""
_OWN = ("block_size", "padding_pct", "prefix_caching", "mamba_cache_mode", "backend", "hits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the user or a plan expects."""

    expect: Expectation | None
    facts: Mapping[str, str] = field(default_factory=dict)
    """Any other fact by name, compared as text."""
    hits_named: bool = False
    """Whether kernel hits were asked for explicitly."""


def parse_expectations(
    items: Iterable[str], *, base: Expectation | None, facts: Iterable[str]
) -> Expected:
    """Reads ``key=value`` items on top of what the plan expects.

    Args:
        items: as given on the command line.
        base: expectation of the plan, or None.
        facts: names of the other facts that may be expected.

    Raises:
        UsageError: an item has no ``=``, an unknown key, a value that does not fit its key, or
            another value than an item before it.
    """
    expect, others, hits = base, {}, False
    for item in _merged(items):
        key, separator, value = (part.strip() for part in item.partition("="))
        key = _ALIASES.get(key, key)
        if not separator or not value:
            message = f"--expect {item!r}: write key=value, e.g. block_size=832"
            raise UsageError(message)
        if key in _OWN:
            expect = _set(expect or NOTHING_EXPECTED, key, value)
            hits = hits or key == "hits"
        elif key == BLOCK_MULTIPLE:
            others[key] = str(_positive(key, value))
        elif key in facts:
            others[key] = value
        else:
            known = ", ".join((*_OWN, BLOCK_MULTIPLE, *sorted(set(facts) - set(_ALIASES))))
            message = f"--expect {item!r}: unknown key {key!r}; known: {known}"
            raise UsageError(message)
    return Expected(expect=expect, facts=others, hits_named=hits)


def _merged(items: Iterable[str]) -> list[str]:
    """One item per key: kernels to be hit add up, and any other key can only be one thing."""
    found: dict[str, str] = {}
    for item in items:
        name, _, value = (part.strip() for part in item.partition("="))
        key = _ALIASES.get(name, name)
        before = found.get(key, item)
        if key == "hits" and before != item:
            found[key] = f"{before},{value}"
        elif before.partition("=")[2].strip() == value:
            found[key] = item
        else:
            message = f"--expect {item!r}: {before!r} was expected before; name one of them"
            raise UsageError(message)
    return list(found.values())


def _set(expect: Expectation, key: str, value: str) -> Expectation:
    if key == "block_size":
        return dataclasses.replace(expect, block_size=_positive(key, value))
    if key == "padding_pct":
        return dataclasses.replace(expect, padding_pct=_percent(value))
    if key == "prefix_caching":
        return dataclasses.replace(expect, enable_prefix_caching=_switch(key, value))
    if key == "hits":
        return dataclasses.replace(expect, kernels=_names(value))
    if key == "mamba_cache_mode":
        return dataclasses.replace(expect, mamba_cache_mode=value)
    return dataclasses.replace(expect, backend=value)


def _names(value: str) -> tuple[str, ...]:
    names = tuple(name for name in (part.strip() for part in value.split(",")) if name)
    if names:
        return names
    message = f"--expect hits={value}: needs the name of a kernel, e.g. vendor_prefill"
    raise UsageError(message)


def _positive(key: str, value: str) -> int:
    if value.isascii() and value.isdecimal() and 0 < len(value) < 12 and int(value) > 0:
        return int(value)
    message = f"--expect {key}={value}: needs a positive number of tokens"
    raise UsageError(message)


def _percent(value: str) -> float:
    try:
        number = float(value.rstrip("%"))
    except ValueError:
        number = float("nan")
    if 0 <= number < 1e6:
        return number
    message = f"--expect padding_pct={value}: needs a percentage such as 6.26"
    raise UsageError(message)


def _switch(key: str, value: str) -> bool:
    lowered = value.lower()
    if lowered in _ON or lowered in _OFF:
        return lowered in _ON
    message = f"--expect {key}={value}: needs on or off"
    raise UsageError(message)
