"""Does the server's KV cache hold what the derivation predicts?"""

from __future__ import annotations

from collections.abc import Iterator

from hwtune.domain.capacity import Capacity, capacity
from hwtune.domain.check_records import Check, CheckStatus
from hwtune.domain.evidence import Evidence, Place
from hwtune.domain.page_steps import PageDerivation

_NAME = "capacity"
_QUESTION = "Does the KV cache hold what derive-page predicts?"
_GIB = 2**30
_ROUNDING_GIB = 0.0051
"""vLLM prints the memory with two decimals."""
_TOLERANCE = 0.01
"""vLLM prints the concurrency with two decimals and takes small tensors off the memory."""


def capacity_check(evidence: Evidence, page: PageDerivation) -> Check:
    """Tokens, requests and blocks that the server states, against the derivation's.

    The memory comes from the server: as printed, else from its number of blocks.

    Args:
        evidence: of one server.
        page: derived for the deployment that the server states.
    """
    seen_page = evidence.value("attention_block_size")
    if isinstance(seen_page, int) and page.hybrid and seen_page != page.block_size_tokens:
        reason = (
            f"the page is {seen_page}, derived was {page.block_size_tokens}; see the page first"
        )
        return _check("skipped", reason=reason)
    span = _predicted(evidence, page)
    if span is None:
        reason = "the server states neither memory nor number of blocks, or the config hides layers"
        return _check("skipped", reason=reason)
    low, high = span
    stated = list(_stated(evidence, low, high))
    if not stated:
        return _check("skipped", reason="the server states no capacity")
    wrong = [text for text, fits, _ in stated if not fits]
    places = tuple(place for _, fits, found in stated for place in found if wrong != [] or fits)
    return _check(
        "failed" if wrong else "passed",
        expected=_shown(low, high),
        seen="; ".join(text for text, _, _ in stated),
        reason=f"{'; '.join(wrong)}; derived {_shown(low, high)}" if wrong else "",
        evidence=places[:3],
    )


def _predicted(evidence: Evidence, page: PageDerivation) -> tuple[Capacity, Capacity] | None:
    """The least and the most that the stated memory can hold."""
    length = evidence.value("max_model_len")
    tokens = length if isinstance(length, int) else None
    memory, blocks = evidence.value("kv_cache_memory_gib"), evidence.value("num_gpu_blocks")
    if isinstance(memory, (int, float)):
        bounds = [int((memory + sign * _ROUNDING_GIB) * _GIB) for sign in (-1, 1)]
    else:
        one = capacity(page, _GIB, tokens)
        if one is None or not isinstance(blocks, int):
            return None
        page_bytes = max(page.attention_page_bytes, page.mamba_page_padded_bytes or 0)
        bounds = [blocks * page_bytes * one.layers_per_group] * 2
    low, high = (capacity(page, size, tokens) for size in bounds)
    return None if low is None or high is None else (low, high)


def _stated(
    evidence: Evidence, low: Capacity, high: Capacity
) -> Iterator[tuple[str, bool, tuple[Place, ...]]]:
    for fact, title, least, most in (
        ("kv_cache_tokens", "tokens", low.tokens, high.tokens),
        ("max_concurrency", "requests of full length", low.concurrency, high.concurrency),
        ("num_gpu_blocks", "blocks", low.num_blocks, high.num_blocks),
    ):
        value = evidence.value(fact)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            slack = max(abs(most) * _TOLERANCE, 0.01)
            yield (
                f"{value:,} {title}",
                least - slack <= value <= most + slack,
                evidence.places(fact),
            )


def _shown(low: Capacity, high: Capacity) -> str:
    def span(least: float, most: float) -> str:
        return f"{least:,.5g}" if least == most else f"{least:,.5g} to {most:,.5g}"

    return (
        f"{low.tokens:,} tokens, {span(round(low.concurrency, 2), round(high.concurrency, 2))} "
        f"requests of {low.request_tokens:,}, {low.num_blocks:,} blocks"
        if low.tokens == high.tokens
        else f"{low.tokens:,} to {high.tokens:,} tokens, "
        f"{span(round(low.concurrency, 2), round(high.concurrency, 2))} requests of "
        f"{low.request_tokens:,}, {low.num_blocks:,} to {high.num_blocks:,} blocks"
    )


def _check(
    status: CheckStatus,
    *,
    expected: str = "",
    seen: str = "not stated",
    reason: str = "",
    evidence: tuple[Place, ...] = (),
) -> Check:
    return Check(
        name=_NAME,
        question=_QUESTION,
        status=status,
        expected=expected,
        seen=seen,
        reason=reason,
        evidence=evidence,
    )
