"""Decode on the CPU: one pass over the sequence's pages where they lie, no gather, no copy."""

from __future__ import annotations

import torch


def page_decode_attention(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    block_table: torch.Tensor,
    context_len: int,
    scale: float,
    output: torch.Tensor,
) -> None:
    """Same arguments and result as :func:`hwtune_kernels.reference.paged_attention`, for q = 1.

    One block-table entry is read per page; within a page K is already ``[head_size, block_size]``
    so that the scores of a whole page are one matrix product. Page by page in FP32, with the
    running maximum and sum of an online softmax.
    """
    num_kv_heads, block_size = value_pages.shape[1], value_pages.shape[2]
    num_pages = -(-context_len // block_size)
    queries = query.view(num_kv_heads, -1, query.shape[-1]).float() * scale
    maxima = queries.new_full((*queries.shape[:2], 1), float("-inf"))
    total = torch.zeros_like(maxima)
    result = torch.zeros_like(queries)
    for index, page in enumerate(block_table[:num_pages].tolist()):
        length = min(block_size, context_len - index * block_size)
        scores = torch.bmm(queries, key_pages[page, :, :, :length].float())
        higher = torch.maximum(maxima, scores.amax(dim=-1, keepdim=True))
        weights = torch.exp(scores - higher)
        fade = torch.exp(maxima - higher)
        total = total * fade + weights.sum(dim=-1, keepdim=True)
        result = result * fade + torch.bmm(weights, value_pages[page, :, :length].float())
        maxima = higher
    output.copy_((result / total).view_as(output))
