"""Prefill on the CPU: gather the sequence's pages once, then attention in tiles.

Where it wins over vLLM's CPU attention it does so because both matrix products of a tile run as
BF16 GEMMs over all query heads of a KV head, and because keys that a block of queries cannot see
are never multiplied. FP32 gains nothing and is refused by the profile's conditions.
"""

from __future__ import annotations

import torch

QUERY_BLOCK_TOKENS = 64
"""Query tokens per block: at least as fast as 32, 128 and 256 on AVX-512 BF16, see README."""

KEY_TILE_TOKENS = (512, 1024)
"""Keys per tile, least and most: a tile's scores stay in a core's second-level cache."""

_TILE_SCORES = 1 << 19

_HIGHEST_SCORE = 2.0
"""Above the maximum that was subtracted. A score of 2 is rounded by 0.004, as weights are."""


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

    A BF16 GEMM rounds its result to BF16, which would cost large scores their precision. So a row's
    maximum is subtracted inside the GEMM, before the rounding: what matters to the softmax is then
    close to zero and exact to a few thousandths, as in FlashAttention, which rounds the weights
    themselves to BF16. The maximum is that of the newest tile, whose scores are computed twice for
    it, and of an older tile only where that has a score well above it.
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
        block = _attend(rows, keys[:, :, :visible], values, scale, stop - start)
        results[start:stop] = block.view(num_kv_heads, group, -1, head_size).permute(2, 0, 1, 3)


def _attend(
    rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, block: int
) -> torch.Tensor:
    """Online softmax of one block of queries, from its newest keys to the oldest: FP32.

    ``rows``: ``[num_kv_heads, heads of one * block, head_size]``; ``keys`` end where its last query
    does, so the newest tile holds every key that only some of its queries see.
    """
    end = keys.shape[-1]
    tile = _tile_tokens(rows)
    begin = max(end - tile, 0)
    newest = keys[:, :, begin:]
    scores = torch.baddbmm(rows.new_zeros(1), rows, newest, beta=0, alpha=scale)
    maxima = _hide_the_future(scores, block).amax(dim=-1, keepdim=True)
    scores = torch.baddbmm(maxima, rows, newest, beta=-1, alpha=scale)
    weights = _hide_the_future(scores, block).exp_()
    sums = weights.sum(dim=-1, keepdim=True, dtype=torch.float32)
    weighted = torch.bmm(weights, values[:, begin:end]).float()
    while begin > 0:
        begin, end = max(begin - tile, 0), begin
        older = keys[:, :, begin:end]
        scores = torch.baddbmm(maxima, rows, older, beta=-1, alpha=scale)
        if scores.amax() > _HIGHEST_SCORE:
            higher = maxima + scores.amax(dim=-1, keepdim=True).clamp_(min=0)
            fade = torch.exp(maxima.float() - higher.float())
            maxima, sums, weighted = higher, sums * fade, weighted * fade
            scores = torch.baddbmm(maxima, rows, older, beta=-1, alpha=scale)
        weights = scores.exp_()
        sums += weights.sum(dim=-1, keepdim=True, dtype=torch.float32)
        weighted += torch.bmm(weights, values[:, begin:end])
    return weighted / sums


def _tile_tokens(rows: torch.Tensor) -> int:
    least, most = KEY_TILE_TOKENS
    fit: int = _TILE_SCORES // (rows.shape[0] * rows.shape[1])
    return min(max(fit // least * least, least), most)


def _hide_the_future(scores: torch.Tensor, block: int) -> torch.Tensor:
    """Masks, in the block's own columns, the keys that come after each query."""
    num_kv_heads, rows, visible = scores.shape
    future = torch.ones(block, block, dtype=torch.bool).triu(1)
    by_query = scores.view(num_kv_heads, rows // block, block, visible)
    by_query[..., -block:].masked_fill_(future, float("-inf"))
    return scores


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
