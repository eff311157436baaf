"""Prefill on the CPU: gather the sequence's pages once, then attention in blocks of queries.

Where it wins over vLLM's CPU attention it does so because both matrix products of a block run as
one BF16 GEMM over all query heads of a KV head, and because keys that a block cannot see are
never multiplied. FP32 gains nothing and is refused by the profile's conditions.
"""

from __future__ import annotations

import torch

QUERY_BLOCK_TOKENS = 64
"""Query tokens per block: 64 was at least as fast as 128 and 256 on AVX-512 BF16, see README."""


def prefill_attention(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    block_table: torch.Tensor,
    context_len: int,
    scale: float,
    output: torch.Tensor,
) -> None:
    """Same arguments and result as :func:`hwtune_kernels.reference.paged_attention`."""
    num_tokens, num_heads, head_size = query.shape
    num_kv_heads = value_pages.shape[1]
    group = num_heads // num_kv_heads
    keys, values = _gather(key_pages, value_pages, block_table, context_len)
    grouped = query.view(num_tokens, num_kv_heads, group, head_size)
    unused = query.new_empty(1)  # baddbmm's addend, which beta=0 ignores
    results = output.view(num_tokens, num_kv_heads, group, head_size)
    for start in range(0, num_tokens, QUERY_BLOCK_TOKENS):
        stop = min(start + QUERY_BLOCK_TOKENS, num_tokens)
        visible = context_len - num_tokens + stop
        rows = grouped[start:stop].permute(1, 2, 0, 3).reshape(num_kv_heads, -1, head_size)
        scores = torch.baddbmm(unused, rows, keys[:, :, :visible], beta=0, alpha=scale)
        scores = scores.view(num_kv_heads, group, -1, visible)
        _hide_the_future(scores, stop - start)
        weights = torch.softmax(scores, dim=-1).view(num_kv_heads, -1, visible)
        block = torch.bmm(weights, values[:, :visible])
        results[start:stop] = block.view(num_kv_heads, group, -1, head_size).permute(2, 0, 1, 3)


def _hide_the_future(scores: torch.Tensor, block: int) -> None:
    """Masks, in the last ``block`` columns, the keys that come after each query."""
    future = torch.ones(block, block, dtype=torch.bool).triu(1)
    scores[..., -block:].masked_fill_(future, float("-inf"))


def _gather(
    key_pages: torch.Tensor, value_pages: torch.Tensor, block_table: torch.Tensor, context_len: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """K ``[num_kv_heads, head_size, tokens]`` and V ``[num_kv_heads, tokens, head_size]``.

    Whole pages: the last one may hold unused tokens, which no block of queries ever sees.
    """
    _, num_kv_heads, block_size, head_size = value_pages.shape
    pages = block_table[: -(-context_len // block_size)].long()
    keys = key_pages[pages].permute(1, 2, 0, 3).reshape(num_kv_heads, head_size, -1)
    values = value_pages[pages].transpose(0, 1).reshape(num_kv_heads, -1, head_size)
    return keys, values
