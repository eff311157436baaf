"""From a printed page back to the deployments that would print it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

from hwtune.domain.deployment import Deployment
from hwtune.domain.errors import HwtuneError
from hwtune.domain.model import ModelShape
from hwtune.domain.page_derive import derive_page
from hwtune.domain.page_steps import PageDerivation

_ALIGNMENT = "alignment"
_KNOBS: dict[str, tuple[Any, ...]] = {
    _ALIGNMENT: (16, 32, 48, 64, 128, 256, 512, 1024),
    "num_speculative_tokens": tuple(range(17)),
    "kv_cache_dtype": ("auto", "fp8", "int8_per_token_head"),
    "mamba_ssm_cache_dtype": ("auto", "float32", "bfloat16"),
    "tensor_parallel_size": (1, 2, 4, 8),
    "dtype": ("auto", "float32"),
}
"""Knob -> values tried, plainest first."""
_FLAGS = {
    _ALIGNMENT: "alignment (backend or --block-size)",
    "num_speculative_tokens": "draft tokens",
    "kv_cache_dtype": "--kv-cache-dtype",
    "mamba_ssm_cache_dtype": "--mamba-ssm-cache-dtype",
    "tensor_parallel_size": "--tensor-parallel-size",
    "dtype": "--dtype",
}
MAX_CHANGES = 2
"""Knobs that may differ from the deployment asked about."""
_PADDING_TOLERANCE = 0.0051


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A deployment that prints the observed page."""

    model: str
    changes: tuple[str, ...]
    """What differs from the deployment asked about; empty when it prints the page itself."""
    page: PageDerivation


def explain_observed(
    models: Sequence[tuple[str, ModelShape]],
    deployment: Deployment,
    alignment_tokens: int,
    block_size: int,
    padding_pct: float | None = None,
    max_changes: int = MAX_CHANGES,
) -> tuple[Explanation, ...]:
    """Deployments that print ``block_size`` tokens (and that padding), fewest changes first.

    A set of changes that contains a smaller one that is enough is left out. At most
    ``max_changes`` knobs differ from ``deployment``; the first of ``models`` is the one asked about.
    """
    found = []
    for name, model in models:
        sets: list[set[str]] = []
        for changes in _changes(deployment, alignment_tokens, max_changes):
            page = _page(model, deployment, alignment_tokens, changes)
            if page is not None and _matches(page, block_size, padding_pct):
                texts = tuple(f"{_FLAGS[knob]} {value}" for knob, value in changes.items())
                if any(smaller <= set(texts) for smaller in sets):
                    continue
                if texts:
                    sets.append(set(texts))
                found.append(Explanation(model=name, changes=texts, page=page))
    asked = models[0][0]
    return tuple(sorted(found, key=lambda item: len(item.changes) + 2 * (item.model != asked)))


def _changes(deployment: Deployment, alignment_tokens: int, most: int) -> Iterator[dict[str, Any]]:
    """Every set of at most ``most`` knobs with other values than the deployment's."""
    yield {}
    others = {
        knob: [value for value in values if value != _current(deployment, alignment_tokens, knob)]
        for knob, values in _KNOBS.items()
    }
    for count in range(1, most + 1):
        for knobs in combinations(_KNOBS, count):
            for values in product(*(others[knob] for knob in knobs)):
                yield dict(zip(knobs, values, strict=True))


def _current(deployment: Deployment, alignment_tokens: int, knob: str) -> Any:  # noqa: ANN401
    return alignment_tokens if knob == _ALIGNMENT else getattr(deployment, knob)


def _page(
    model: ModelShape, deployment: Deployment, alignment_tokens: int, changes: dict[str, Any]
) -> PageDerivation | None:
    fields = {knob: value for knob, value in changes.items() if knob != _ALIGNMENT}
    alignment = changes.get(_ALIGNMENT, alignment_tokens)
    try:
        page = derive_page(model, replace(deployment, **fields), alignment_tokens=alignment)
    except HwtuneError:
        return None
    return page if page.hybrid else None


def _matches(page: PageDerivation, block_size: int, padding_pct: float | None) -> bool:
    if page.block_size_tokens != block_size:
        return False
    if padding_pct is None:
        return True
    return abs((page.padding_pct or 0.0) - padding_pct) < _PADDING_TOLERANCE
