"""Paged causal attention in float64: slow, plain, and the oracle for the other implementations."""

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


def batched_paged_attention(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    output: torch.Tensor,
    *,
    query_start: torch.Tensor,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
) -> None:
    """Causal attention of each sequence's newest tokens, K and V as GPU caches store them.

    Args:
        query: ``[num_tokens, num_heads, head_size]``, the sequences one after the other.
        key_pages: ``[num_blocks, block_size, num_kv_heads, head_size]``.
        value_pages: as ``key_pages``.
        block_table: ``[num_sequences, pages]`` physical page of each logical page.
        seq_lens: ``[num_sequences]`` tokens of each sequence, the new ones included.
        scale: factor on Q·K.
        output: ``[num_tokens, num_heads, head_size]``; written for every token of a sequence.
        query_start: ``[num_sequences + 1]`` first token of each sequence in ``query``.
        window: keys that a token sees, itself included; 0 for all.
        soft_cap: scores become ``cap · tanh(score / cap)``; 0 for none.
        sinks: ``[num_heads]`` logits that take part in the softmax without a value.
        key_scale: what every key is multiplied by, for quantised caches.
        value_scale: what every value is multiplied by.

    Source: the definition of scaled dot-product attention; the extras are those of vLLM's layers.
    """
    group = query.shape[1] // key_pages.shape[2]
    starts = query_start.tolist()
    for sequence, length in enumerate(seq_lens.tolist()):
        new = slice(starts[sequence], starts[sequence + 1])
        num_new = new.stop - new.start
        if num_new == 0:
            continue
        keys = _tokens(key_pages, block_table[sequence], length, key_scale, group)
        values = _tokens(value_pages, block_table[sequence], length, value_scale, group)
        scores = torch.einsum("qhd,khd->hqk", query[new].double(), keys) * scale
        if soft_cap:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        last = torch.arange(length - num_new, length, device=query.device)[:, None]
        position = torch.arange(length, device=query.device)[None, :]
        hidden = position > last
        if window:
            hidden |= position <= last - window
        scores.masked_fill_(hidden, float("-inf"))
        if sinks is not None:
            extra = sinks.double()[:, None, None].expand(-1, num_new, 1)
            scores = torch.cat([scores, extra], dim=-1)
        weights = torch.softmax(scores, dim=-1)[..., :length]
        output[new] = torch.einsum("hqk,khd->qhd", weights, values).to(output.dtype)


def _tokens(
    pages: torch.Tensor, table: torch.Tensor, length: int, scale: torch.Tensor | None, group: int
) -> torch.Tensor:
    """One sequence's K or V ``[length, num_heads, head_size]``, dense, in float64."""
    used = table[: -(-length // pages.shape[1])].long()
    dense = pages[used].flatten(0, 1)[:length].double()
    if scale is not None:
        dense = dense * scale.double()
    return dense.repeat_interleave(group, dim=1)
