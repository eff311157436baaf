"""Decode in Triton: a loop over a sequence's pages, tiles inside the page, split along the KV.

Each page costs one block-table read, outside the loop over its tiles. In vLLM's generic kernel
that read stands in front of every tile's loads; taking it out is what lets Triton prefetch K and
V deeper. Long sequences are cut into segments that a second kernel merges.
"""

from __future__ import annotations

from typing import Any

import torch

from hwtune_kernels.page_decode import spec
from hwtune_kernels.page_decode.decode_jit import merge_segments_kernel, page_decode_kernel
from hwtune_kernels.page_decode.spec import Tuning
from hwtune_kernels.triton_call import Launch, check_tensors, upcast
from hwtune_kernels.tuning import tile_of

_MERGE_BLOCK = 32
"""Head dimensions per program of the merge, so that 64 segments stay in registers."""


def page_decode(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    output: torch.Tensor,
    *,
    query_start: torch.Tensor,
    max_query_len: int = 1,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
    exact: bool = False,
    tuning: Tuning | None = None,
) -> None:
    """Causal attention of each sequence's last token (or last few, with drafts) over its pages.

    Args:
        query: ``[num_tokens, num_heads, head_size]``, BF16 or FP16, last stride 1.
        key_pages: ``[num_blocks, block_size, num_kv_heads, head_size]`` with any strides but a last
            one of 1: a view of any layout in which a page has one block of memory. Same dtype as
            ``query``, or FP8 together with both scales.
        value_pages: as ``key_pages``, with strides of its own.
        block_table: ``[num_sequences, >= pages]`` int32, physical page of each logical page.
        seq_lens: ``[num_sequences]`` int32 on the device, tokens with the new ones included.
        scale: positive factor on Q·K.
        output: ``[num_tokens, num_heads, head_size]``, overwritten for every token of a sequence.
        query_start: ``[num_sequences + 1]`` int32, first token of each sequence in ``query``.
            A sequence without tokens is padding and is skipped.
        max_query_len: no sequence has more new tokens than this.
        window: keys that a token sees, itself included; 0 for all.
        soft_cap: scores become ``cap · tanh(score / cap)``; 0 for none.
        sinks: ``[num_heads]`` logits that take part in the softmax without a value.
        key_scale: one-element FP32 tensor on the device; what an FP8 key is multiplied by.
        value_scale: the same for values.
        exact: the tile order and arithmetic of vLLM 0.32's generic kernel (16-token tiles, 16
            segments, natural exponential), for a result with the same bits.
        tuning: launch constants of this device; None takes defaults that fit no device in
            particular.

    Raises:
        ValueError: a shape that the kernel does not compute, or a stride it cannot read.

    Source: FlashDecoding's split of the KV axis; online softmax of Milakov and Gimelshein, 2018.
    """
    for launch in launches(
        query,
        key_pages,
        value_pages,
        block_table,
        seq_lens,
        scale,
        output,
        query_start=query_start,
        max_query_len=max_query_len,
        window=window,
        soft_cap=soft_cap,
        sinks=sinks,
        key_scale=key_scale,
        value_scale=value_scale,
        exact=exact,
        tuning=tuning,
    ):
        launch.run()


def launches(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    output: torch.Tensor,
    *,
    query_start: torch.Tensor,
    max_query_len: int = 1,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
    exact: bool = False,
    tuning: Tuning | None = None,
) -> tuple[Launch, ...]:
    """The launches of :func:`page_decode`, not made yet; the tensors may be on the meta device.

    Raises:
        ValueError: as :func:`page_decode`.
    """
    block_size, num_kv_heads = key_pages.shape[1], key_pages.shape[2]
    num_sequences, num_heads, head_size = seq_lens.shape[0], query.shape[1], query.shape[2]
    fp8 = key_scale is not None
    check_tensors(query, key_pages, value_pages, output, scale, fp8=fp8)
    reason = spec.refusal(
        query_len=max_query_len,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        block_size=block_size,
        exact=exact,
        has_extras=bool(window or soft_cap or fp8 or sinks is not None),
    )
    if reason is not None:
        raise ValueError(reason)
    chosen = tuning or Tuning()
    tile = spec.EXACT_TILE_TOKENS if exact else tile_of(block_size, chosen.tile_tokens)
    segments = spec.EXACT_SEGMENTS if exact else chosen.segments_of(num_sequences, num_kv_heads)
    scratch = _scratch(query, segments)
    group = num_heads // num_kv_heads
    common: dict[str, Any] = {
        "NUM_HEADS": num_heads,
        "HEAD_SIZE": head_size,
        "TILE": tile,
        "SEGMENTS": segments,
        "WINDOW": window,
        "EXACT": exact,
    }
    decode = Launch(
        kernel=page_decode_kernel,
        grid=(num_sequences, num_kv_heads, segments),
        arguments=(
            *(query, key_pages, value_pages, block_table, seq_lens, query_start),
            *(sinks, key_scale, value_scale, output, *scratch, scale, soft_cap),
            *(*query.stride()[:2], *output.stride()[:2]),
            *(*key_pages.stride()[:3], *value_pages.stride()[:3], block_table.stride(0)),
        ),
        constants=common
        | {
            "GROUP": group,
            "PAGE": block_size,
            "ROWS": spec.rows_of(max_query_len, group),
            "DRAFTS": max_query_len > 1,
            "SOFT_CAP": soft_cap > 0,
            "HAS_SINKS": sinks is not None,
            "FP8": fp8,
            "UPCAST": upcast(query),
        },
        options={} if exact else chosen.options,
    )
    if segments == 1:
        return (decode,)
    block = head_size if exact else _MERGE_BLOCK
    merge = Launch(
        kernel=merge_segments_kernel,
        grid=(num_sequences * head_size // block, num_heads, max_query_len),
        arguments=(output, *scratch, seq_lens, query_start, *output.stride()[:2]),
        constants=common | {"BLOCK": block},
    )
    return decode, merge


def _scratch(query: torch.Tensor, segments: int) -> tuple[torch.Tensor, ...]:
    """Partial results, maxima and sums of every row and segment, in one allocation."""
    if segments == 1:
        return query, query, query  # not touched: the kernel writes the result itself
    num_tokens, num_heads, head_size = query.shape
    rows = num_tokens * num_heads * segments
    memory = torch.empty(rows * (head_size + 2), dtype=torch.float32, device=query.device)
    return tuple(memory.split([rows * head_size, rows, rows]))
