"""Prefill on the CPU: gather the sequence's pages once, then attention in blocks of queries.

Where it wins over vLLM's CPU attention it does so because both matrix products of a block run as
BF16 GEMMs over all query heads of a KV head, and because keys that a block cannot see are never
multiplied. FP32 gains nothing and is refused by the profile's conditions.
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
    """Same arguments and result as :func:`hwtune_kernels.reference.paged_attention`.

    A BF16 GEMM rounds its result to BF16, which would cost large scores their precision. So the
    scores are computed twice: first to find each row's maximum, then minus that maximum, which is
    subtracted before the rounding. What matters to the softmax is then close to zero and exact to
    a few thousandths, as in FlashAttention, which rounds the weights themselves to BF16.
    """
    num_tokens, num_heads, head_size = query.shape
    num_kv_heads = value_pages.shape[1]
    group = num_heads // num_kv_heads
    keys, values = _gather(key_pages, value_pages, block_table, context_len)
    grouped = query.view(num_tokens, num_kv_heads, group, head_size)
    results = output.view(num_tokens, num_kv_heads, group, head_size)
    for start in range(0, num_tokens, QUERY_BLOCK_TOKENS):
        stop = min(start + QUERY_BLOCK_TOKENS, num_tokens)
        visible = context_len - num_tokens + stop
        rows = grouped[start:stop].permute(1, 2, 0, 3).reshape(num_kv_heads, -1, head_size)
        weights = _weights(rows, keys[:, :, :visible], scale, group)
        block = torch.bmm(weights, values[:, :visible])
        results[start:stop] = block.view(num_kv_heads, group, -1, head_size).permute(2, 0, 1, 3)


def _weights(rows: torch.Tensor, keys: torch.Tensor, scale: float, group: int) -> torch.Tensor:
    """Softmax weights ``[num_kv_heads, rows, visible]`` of one block of queries."""
    scores = torch.baddbmm(rows.new_zeros(1), rows, keys, beta=0, alpha=scale)
    _hide_the_future(scores, group)
    maxima = scores.amax(dim=-1, keepdim=True)
    scores = torch.baddbmm(maxima, rows, keys, beta=-1, alpha=scale)
    _hide_the_future(scores, group)
    return torch.softmax(scores, dim=-1)


def _hide_the_future(scores: torch.Tensor, group: int) -> None:
    """Masks, in the block's own columns, the keys that come after each query."""
    num_kv_heads, rows, visible = scores.shape
    block = rows // group
    future = torch.ones(block, block, dtype=torch.bool).triu(1)
    by_query = scores.view(num_kv_heads, group, block, visible)
    by_query[..., -block:].masked_fill_(future, float("-inf"))


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


def varlen_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool,
    scale: float,
    out: torch.Tensor,
) -> None:
    """The CPU's provider: the interface of :mod:`hwtune_kernels.prefill.varlen`, per sequence.

    Raises:
        ValueError: attention that is not causal.
    """
    if not causal:
        message = "prefill.cpu computes causal attention only"
        raise ValueError(message)
    starts = cu_seqlens_q.tolist()
    for row, length in enumerate(seqused_k.tolist()):
        new = slice(starts[row], starts[row + 1])
        if new.stop > new.start:
            keys, values = k.permute(0, 2, 3, 1), v.transpose(1, 2)
            prefill_attention(q[new], keys, values, block_table[row], length, scale, out[new])
