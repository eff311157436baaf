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
    so that the scores of a whole page are one matrix product.
    """
    num_kv_heads, block_size = value_pages.shape[1], value_pages.shape[2]
    num_pages = -(-context_len // block_size)
    pages = block_table[:num_pages].tolist()
    queries = query.view(num_kv_heads, -1, query.shape[-1])
    tail = context_len - (num_pages - 1) * block_size
    lengths = [block_size] * (num_pages - 1) + [tail]
    scores = torch.cat(
        [
            torch.bmm(queries, key_pages[page, :, :, :length])
            for page, length in zip(pages, lengths, strict=True)
        ],
        dim=-1,
    )
    weights = torch.softmax(scores.float() * scale, dim=-1).to(value_pages.dtype)
    result = torch.zeros_like(queries, dtype=torch.float32)
    for index, (page, length) in enumerate(zip(pages, lengths, strict=True)):
        start = index * block_size
        part = torch.bmm(weights[:, :, start : start + length], value_pages[page, :, :length])
        result += part
    output.copy_(result.view_as(output))
