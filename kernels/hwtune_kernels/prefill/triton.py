"""Prefill in Triton that needs no vendor library: tiles of 128 rows over the pages of the cache.

vLLM's generic kernel gives a program 16 rows, which at a GQA ratio of 6 are two query tokens, and
so reads all of K and V again for every two tokens. A taller tile reads them once for 21.
"""

from __future__ import annotations

import torch

from hwtune_kernels.prefill import spec
from hwtune_kernels.prefill.prefill_jit import tiled_prefill_kernel
from hwtune_kernels.prefill.spec import Tuning
from hwtune_kernels.triton_call import Launch, check_tensors, upcast
from hwtune_kernels.tuning import tile_of


def tiled_prefill(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    output: torch.Tensor,
    *,
    query_start: torch.Tensor,
    max_query_len: int,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
    tuning: Tuning | None = None,
) -> None:
    """Causal attention of each sequence's new tokens over its whole paged context.

    Args:
        query: ``[num_tokens, num_heads, head_size]``, BF16 or FP16, last stride 1.
        key_pages: ``[num_blocks, block_size, num_kv_heads, head_size]``, any strides but a last one
            of 1. Same dtype as ``query``, or FP8 together with both scales.
        value_pages: as ``key_pages``, with strides of its own.
        block_table: ``[num_sequences, >= pages]`` int32, physical page of each logical page.
        seq_lens: ``[num_sequences]`` int32 on the device, tokens with the new ones included.
        scale: positive factor on Q·K.
        output: ``[num_tokens, num_heads, head_size]``, overwritten for every token of a sequence.
        query_start: ``[num_sequences + 1]`` int32, first token of each sequence in ``query``.
        max_query_len: no sequence has more new tokens than this.
        window: keys that a token sees, itself included; 0 for all.
        soft_cap: scores become ``cap · tanh(score / cap)``; 0 for none.
        sinks: ``[num_heads]`` logits that take part in the softmax without a value.
        key_scale: one-element FP32 tensor on the device; what an FP8 key is multiplied by.
        value_scale: the same for values.
        tuning: launch constants of this device; None takes defaults that fit no device in
            particular.

    Raises:
        ValueError: a shape that the kernel does not compute, or a stride it cannot read.

    Source: FlashAttention-2 (Dao, 2023); all query heads of a KV head in one tile, as in vLLM.
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
    max_query_len: int,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
    tuning: Tuning | None = None,
) -> tuple[Launch, ...]:
    """The launches of :func:`tiled_prefill`, not made yet; tensors may be on the meta device.

    Raises:
        ValueError: as :func:`tiled_prefill`.
    """
    chosen = tuning or Tuning()
    block_size, num_kv_heads = key_pages.shape[1], key_pages.shape[2]
    num_heads, head_size = query.shape[1], query.shape[2]
    fp8 = key_scale is not None
    check_tensors(query, key_pages, value_pages, output, scale, fp8=fp8)
    reason = spec.refusal(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        block_size=block_size,
        rows=chosen.rows,
    )
    if reason is not None:
        raise ValueError(reason)
    group = num_heads // num_kv_heads
    blocks = -(-max_query_len // (chosen.rows // group))
    launch = Launch(
        kernel=tiled_prefill_kernel,
        grid=(blocks, num_kv_heads, seq_lens.shape[0]),
        arguments=(
            *(query, key_pages, value_pages, block_table, seq_lens, query_start),
            *(sinks, key_scale, value_scale, output, scale, soft_cap),
            *(*query.stride()[:2], *output.stride()[:2]),
            *(*key_pages.stride()[:3], *value_pages.stride()[:3], block_table.stride(0)),
        ),
        constants={
            "GROUP": group,
            "HEAD_SIZE": head_size,
            "PAGE": block_size,
            "TILE": tile_of(block_size, chosen.tile_tokens),
            "ROWS": chosen.rows,
            "WINDOW": window,
            "SOFT_CAP": soft_cap > 0,
            "HAS_SINKS": sinks is not None,
            "FP8": fp8,
            "UPCAST": upcast(query),
            "PEEL": bool(chosen.peel),
        },
        options=chosen.options,
    )
    return (launch,)
