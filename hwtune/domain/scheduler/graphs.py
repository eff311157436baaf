"""Which steps replay a captured graph, and how far their tokens are padded.

Source: vLLM 0.32 config/vllm.py _set_cudagraph_sizes, v1/cudagraph_dispatcher.py; vllm-ascend
182b75ea84 for the ceiling on an NPU.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from hwtune.domain.scheduler.classify import BatchRow

GraphMode = Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]
GraphKind = Literal["full", "piecewise", "eager"]

CEILING_TOKENS: Final = 512
"""Largest captured size by default; 1024 on data-centre Blackwell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSettings:
    """How a deployment captures graphs."""

    mode: GraphMode
    """cudagraph_mode once the backends have had their say."""
    sizes: tuple[int, ...]
    """cudagraph_capture_sizes, ascending, in tokens."""
    decode_query_len: int = 1
    """1 + num_speculative_tokens."""
    max_num_seqs: int = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphUse:
    """How one step runs."""

    kind: GraphKind
    padded_tokens: int
    """Tokens computed with padding; the step's own where nothing is replayed."""


def capture_sizes(
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    num_speculative_tokens: int = 0,
    npu: bool = False,
    full_decode: bool = True,
) -> tuple[int, ...]:
    """vLLM's default list: 1, 2, 4, eights below 256, then sixteens up to the ceiling.

    The budget and the sizes of whole decode batches are added where they fit; with full decode
    graphs and draft tokens every size is rounded up to a multiple of the query length.

    Args:
        npu: vllm-ascend halves the ceiling and adds no decode batches.
        full_decode: whether decode batches get full graphs.
    """
    length = 1 + num_speculative_tokens
    ceiling = min(max_num_seqs * length * (1 if npu else 2), CEILING_TOKENS)
    largest = min(ceiling, max_num_batched_tokens)
    sizes = set(_grid(largest))
    if max_num_batched_tokens <= largest:
        sizes.add(max_num_batched_tokens)
    if not npu:
        sizes |= {
            size for size in _decode_batches(length, max_num_seqs, ceiling) if size <= largest
        }
    if not full_decode or length == 1:
        return tuple(sorted(sizes))
    top = max(sizes, default=0)
    rounded = {-(-size // length) * length for size in sizes}
    return tuple(sorted(size for size in rounded if size <= top))


def _grid(largest: int) -> list[int]:
    sizes = [size for size in (1, 2, 4) if size <= largest]
    return [*sizes, *range(8, min(largest + 1, 256), 8), *range(256, largest + 1, 16)]


def _decode_batches(length: int, max_num_seqs: int, ceiling: int) -> list[int]:
    """Tokens of whole decode batches that get a graph of their own."""
    if length == 1:
        return [max_num_seqs] if max_num_seqs <= ceiling else []
    most = min(max_num_seqs, CEILING_TOKENS)
    return [count * length for count in (*_grid(most), most) if count * length <= ceiling]


def graph_use(rows: Sequence[BatchRow], settings: GraphSettings) -> GraphUse:
    """What one step replays."""
    tokens = sum(row[0] for row in rows)
    uniform = all(row[0] == settings.decode_query_len for row in rows)
    return graph_of(tokens, uniform, settings)


def graph_of(tokens: int, uniform: bool, settings: GraphSettings) -> GraphUse:
    """What a step of ``tokens`` replays; ``uniform``: every row has the decode query length."""
    at = bisect_left(settings.sizes, tokens)
    if settings.mode == "NONE" or at == len(settings.sizes):
        return GraphUse(kind="eager", padded_tokens=tokens)
    padded = settings.sizes[at]
    full_decode = settings.mode in ("FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
    length = settings.decode_query_len
    fits = length <= padded <= length * settings.max_num_seqs and padded % length == 0
    if settings.mode == "FULL" or (full_decode and uniform and fits):
        return GraphUse(kind="full", padded_tokens=padded)
    if settings.mode == "FULL_DECODE_ONLY":
        return GraphUse(kind="eager", padded_tokens=tokens)
    return GraphUse(kind="piecewise", padded_tokens=padded)
