"""Many deployments of one model at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

from hwtune.domain.deployment import Deployment
from hwtune.domain.errors import InfeasibleError, UsageError
from hwtune.domain.model import ModelShape
from hwtune.domain.page_derive import derive_page
from hwtune.domain.page_steps import PageDerivation
from hwtune.domain.units import LARGEST_SIZE

MAX_COMBINATIONS = 100_000
_INTEGERS = {
    "tp": "tensor_parallel_size",
    "block-size": "block_size",
    "spec": "num_speculative_tokens",
    "max-model-len": "max_model_len",
}
_WORDS = {
    "kv": "kv_cache_dtype",
    "dtype": "dtype",
    "ssm": "mamba_ssm_cache_dtype",
    "conv": "mamba_cache_dtype",
    "version": "version",
}
_ALIGNMENT = "align"
_CACHING = "prefix-caching"
AXES = (*_INTEGERS, *_WORDS, _ALIGNMENT, _CACHING)
_SWITCH = {"on": True, "off": False, "default": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixCell:
    """One combination: its axis values as written, and the page or why there is none."""

    values: tuple[str, ...]
    page: PageDerivation | None
    refusal: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """All combinations, last axis fastest."""

    axes: tuple[str, ...]
    cells: tuple[MatrixCell, ...]


def parse_axes(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """``["tp=1,2", "kv=auto,fp8"]`` as a mapping, in the order given.

    Raises:
        UsageError: a word is no axis, an axis is unknown, empty or given twice.
    """
    axes: dict[str, tuple[str, ...]] = {}
    for word in words:
        name, equals, text = word.partition("=")
        values = tuple(value.strip() for value in text.split(",") if value.strip())
        if not equals or name not in AXES or not values or name in axes:
            message = (
                f"--matrix {word}: expected AXIS=VALUE,VALUE once per axis; axes: {', '.join(AXES)}"
            )
            raise UsageError(message)
        axes[name] = values
    if not axes:
        message = f"--matrix: names no axis; expected AXIS=VALUE,VALUE; axes: {', '.join(AXES)}"
        raise UsageError(message)
    if prod(len(values) for values in axes.values()) > MAX_COMBINATIONS:
        message = f"--matrix: more than {MAX_COMBINATIONS:,} combinations"
        raise UsageError(message)
    return axes


def derive_matrix(
    model: ModelShape,
    deployment: Deployment,
    alignment_tokens: int,
    axes: Mapping[str, tuple[str, ...]],
) -> Matrix:
    """The page of every combination; a refusal takes the place of a page where vLLM refuses.

    Raises:
        UsageError: a value does not fit its axis.
        InputError: the model lacks something.
    """
    cells = []
    for values in product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        changed = replace(deployment, **_fields(chosen))
        alignment = _integer(_ALIGNMENT, chosen.get(_ALIGNMENT, str(alignment_tokens)))
        cells.append(_cell(model, changed, alignment, values))
    return Matrix(axes=tuple(axes), cells=tuple(cells))


def _cell(
    model: ModelShape, deployment: Deployment, alignment: int, values: tuple[str, ...]
) -> MatrixCell:
    try:
        page = derive_page(model, deployment, alignment_tokens=alignment)
    except InfeasibleError as error:
        return MatrixCell(values=values, page=None, refusal=str(error))
    return MatrixCell(values=values, page=page, refusal=None)


def _fields(chosen: Mapping[str, str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, text in chosen.items():
        if name in _INTEGERS:
            fields[_INTEGERS[name]] = _integer(name, text, minimum=0 if name == "spec" else 1)
        elif name in _WORDS:
            fields[_WORDS[name]] = text
        elif name == _CACHING:
            fields["enable_prefix_caching"] = _switch(text)
    return fields


def _integer(name: str, text: str, minimum: int = 1) -> int:
    if not (text.isdecimal() and len(text) <= 12) or not minimum <= int(text) <= LARGEST_SIZE:
        message = (
            f"--matrix {name}={text[:40]}: expected an integer from {minimum} to {LARGEST_SIZE} "
            "(2**31)"
        )
        raise UsageError(message)
    return int(text)


def _switch(text: str) -> bool | None:
    if text not in _SWITCH:
        message = f"--matrix {_CACHING}={text}: expected on, off or default"
        raise UsageError(message)
    return _SWITCH[text]
