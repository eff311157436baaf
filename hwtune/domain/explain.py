"""Sentences about a page: what moved it, what else gives it, why not another one."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from hwtune.domain.capacity import capacity
from hwtune.domain.deployment import Deployment
from hwtune.domain.errors import HwtuneError
from hwtune.domain.inverse import Explanation, explain_observed
from hwtune.domain.page_derive import derive_page
from hwtune.domain.page_options import PageOptions, kernel_multiple
from hwtune.domain.page_steps import PageDerivation
from hwtune.domain.units import ceil_div, format_bytes, round_up

_FIXED = ("engine", "platform", "version", "state_dtypes_of", "cpu_features")
"""Fields that say where the model runs, not how it was configured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """What one setting does to the page."""

    setting: str
    value: str
    block_size_without: int
    block_size: int


def movements(page: PageDerivation, alignment_tokens: int) -> tuple[Movement, ...]:
    """The settings that differ from vLLM's defaults, and the page without each of them."""
    plain = Deployment()
    moved = []
    for field in fields(Deployment):
        value, default = getattr(page.deployment, field.name), getattr(plain, field.name)
        if field.name in _FIXED or value == default:
            continue
        try:
            without = derive_page(
                page.model,
                replace(page.deployment, **{field.name: default}),
                alignment_tokens=alignment_tokens,
            )
        except HwtuneError:
            continue
        moved.append(
            Movement(
                setting=field.name,
                value=str(value),
                block_size_without=without.block_size_tokens,
                block_size=page.block_size_tokens,
            )
        )
    return tuple(moved)


def equivalents(page: PageDerivation, alignment_tokens: int) -> tuple[Explanation, ...]:
    """Single changes of the deployment that give the same page; the padding tells them apart."""
    found = explain_observed(
        [(page.model.architecture, page.model)],
        page.deployment,
        alignment_tokens,
        page.block_size_tokens,
        max_changes=1,
    )
    return tuple(item for item in found if item.changes)


def needed_tokens(page: PageDerivation) -> int:
    """Tokens whose attention cache holds the recurrent state."""
    return ceil_div(page.state_bytes or 0, max(page.attention_bytes_per_token, 1))


def neighbours(options: PageOptions) -> tuple[int, int]:
    """The next smaller and next larger page, in tokens, that suit the kernels; 0: none smaller."""
    multiple = kernel_multiple(options.profile)
    smallest = round_up(needed_tokens(options.default.page), multiple)
    block = options.required.page.block_size_tokens
    smaller = (block - 1) // multiple * multiple
    return (smaller if smaller >= smallest else 0), (block // multiple + 1) * multiple


def why_not(options: PageOptions, tokens: int, memory_bytes: int | None = None) -> str:
    """Why a page of that many tokens is not the answer, with its cost."""
    page, multiple = options.required.page, kernel_multiple(options.profile)
    needed = needed_tokens(page)
    if tokens == page.block_size_tokens:
        return f"{tokens} is the page."
    if tokens < needed:
        return f"Not {tokens}: the state needs {needed} tokens, so the page cannot hold it."
    if tokens % multiple:
        return f"Not {tokens}: {options.profile.name} needs multiples of {multiple}."
    if tokens < page.block_size_tokens:
        return (
            f"{tokens} would hold the state; vLLM's rule rounds to {page.alignment_tokens} first."
        )
    cost = (tokens - page.block_size_tokens) * page.attention_bytes_per_token
    percent = 100 * cost / max(page.attention_page_bytes, 1)
    text = (
        f"{tokens} suits the kernels too, and costs {format_bytes(cost)} more per page and layer "
        f"({percent:.2f} %) than {page.block_size_tokens} without being needed"
    )
    return f"{text}{_capacity_text(page, tokens, memory_bytes)}."


def _capacity_text(page: PageDerivation, tokens: int, memory_bytes: int | None) -> str:
    if memory_bytes is None:
        return ""
    wide = tokens * page.attention_bytes_per_token
    other = replace(
        page,
        block_size_tokens=tokens,
        attention_page_bytes=wide,
        mamba_page_padded_bytes=wide,
    )
    now, then = capacity(page, memory_bytes), capacity(other, memory_bytes)
    if now is None or then is None:
        return ""
    return f"; the cache holds {then.tokens:,} tokens instead of {now.tokens:,}"
