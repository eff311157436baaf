"""Paged causal attention of one sequence in float64: slow, plain, and the oracle for the others."""

from __future__ import annotations

import torch


def paged_attention(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    block_table: torch.Tensor,
    context_len: int,
    scale: float,
    output: torch.Tensor,
) -> None:
    """Causal attention of the last ``num_tokens`` tokens of a sequence over its whole context.

    Args:
        query: ``[num_tokens, num_heads, head_size]``.
        key_pages: ``[num_blocks, num_kv_heads, head_size, block_size]``; keys are transposed
            within a page, as vLLM's CPU cache stores them.
        value_pages: ``[num_blocks, num_kv_heads, block_size, head_size]``.
        block_table: ``[>= ceil(context_len / block_size)]`` physical page of each logical page.
        context_len: tokens of the sequence, the new ones included.
        scale: factor on Q·K.
        output: ``[num_tokens, num_heads, head_size]``, overwritten.

    Source: the definition of scaled dot-product attention; the page addressing is vLLM's.
    """
    num_tokens, num_heads, _ = query.shape
    num_kv_heads, block_size = value_pages.shape[1], value_pages.shape[2]
    group = num_heads // num_kv_heads
    places = [divmod(position, block_size) for position in range(context_len)]
    keys = torch.stack([key_pages[block_table[page], :, :, slot] for page, slot in places])
    values = torch.stack([value_pages[block_table[page], :, slot] for page, slot in places])
    for token in range(num_tokens):
        visible = context_len - num_tokens + token + 1
        for head in range(num_heads):
            seen = slice(0, visible), head // group
            scores = keys[seen].double() @ query[token, head].double() * scale
            weights = torch.softmax(scores, dim=0)
            output[token, head] = (weights @ values[seen].double()).to(output.dtype)
