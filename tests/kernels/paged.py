"""Paged caches that punish mistakes, and how wrong an attention may be."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SLACK = 1.5
"""Our worst row may be this much worse than the worst row of PyTorch's attention on the same
inputs: both round weights and results to BF16, in another order."""
INTERPRETER_SLACK = 3.0
"""Triton's interpreter truncates where a GPU rounds to BF16, which doubles the error of a store."""


def make_call(
    lengths: list[int],
    *,
    new: list[int] | None = None,
    heads: tuple[int, int, int] = (6, 1, 64),
    page: int = 32,
    dtype: str = "float16",
    cache_dtype: str | None = None,
    layout: str = "interleaved",
    device: str = "cpu",
    sharpness: float = 1.0,
) -> dict[str, Any]:
    """Sequences scattered over shuffled pages; whatever they do not own is NaN.

    Args:
        lengths: tokens per sequence, the new ones included.
        new: new tokens per sequence, 1 each where absent; 0 is padding.
        heads: query heads, KV heads, head size.
        cache_dtype: an FP8 type; then the call has scales.
        layout: how pages lie in memory: ``interleaved`` ``[blocks, page, heads, K|V]``,
            ``head-major`` ``[blocks, heads, page, K|V]``, ``paired`` ``[blocks, 2, page, heads,
            size]``, ``split`` two tensors.
        sharpness: standard deviation of the scores.
    """
    import torch

    num_heads, num_kv_heads, size = heads
    new = new or [1] * len(lengths)
    generator = torch.Generator().manual_seed(sum(lengths) + size)
    pages = [-(-length // page) for length in lengths]
    num_blocks = sum(pages) + 3
    blocks = torch.randperm(num_blocks, generator=generator).tolist()
    keys = torch.full((num_blocks, page, num_kv_heads, size), math.nan)
    values = torch.full_like(keys, math.nan)
    table = torch.full((len(lengths), max(pages) + 1), num_blocks + 7, dtype=torch.int32)
    for sequence, length in enumerate(lengths):
        for index in range(pages[sequence]):
            block = table[sequence, index] = blocks.pop()
            used = min(page, length - index * page)
            for cache in (keys, values):
                cache[block, :used] = torch.randn((used, *cache.shape[2:]), generator=generator)
    query = torch.randn((sum(new), num_heads, size), generator=generator) * sharpness
    stored = getattr(torch, cache_dtype or dtype)
    keys, values = _lay_out(keys.to(stored), values.to(stored), layout)
    call: dict[str, Any] = {
        "query": query.to(getattr(torch, dtype)),
        "key_pages": keys,
        "value_pages": values,
        "block_table": table,
        "seq_lens": torch.tensor(lengths, dtype=torch.int32),
        "scale": size**-0.5,
        "query_start": torch.tensor([0, *new]).cumsum(0).int(),
    }
    if cache_dtype is not None:
        call |= {"key_scale": torch.tensor([0.5]), "value_scale": torch.tensor([1.75])}
    return {key: _moved(value, device) for key, value in call.items()}


def _moved(value: Any, device: str) -> Any:
    return value.to(device) if hasattr(value, "to") else value


def _lay_out(
    keys: torch.Tensor, values: torch.Tensor, layout: str
) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    size = keys.shape[-1]
    if layout == "split":
        return keys, values
    if layout == "paired":
        both = torch.stack([keys, values], dim=1)
        return both[:, 0], both[:, 1]
    both = torch.cat([keys, values], dim=-1)
    if layout == "head-major":
        both = both.transpose(1, 2).contiguous().transpose(1, 2)
    return both[..., :size], both[..., size:]


def check(call: dict[str, Any], output: torch.Tensor, *, interpreted: bool, **extras: Any) -> None:
    """Every row at most ``SLACK`` as wrong as PyTorch's worst row, and nothing left unwritten."""
    import torch
    from hwtune_kernels.reference import batched_paged_attention

    truth = torch.full_like(output, math.nan, dtype=torch.float64)
    batched_paged_attention(**call, **extras, output=truth)
    padding = truth.isnan()
    assert output[padding].isnan().all(), "wrote rows that belong to no sequence"
    theirs = torch_attention(call, **extras)
    slack = INTERPRETER_SLACK if interpreted and output.dtype == torch.bfloat16 else SLACK
    floor = 4 * float(torch.finfo(torch.float32).eps)
    worst, yardstick = _worst_row(output, truth), _worst_row(theirs, truth)
    assert worst <= slack * yardstick + floor, f"{worst:.2e} against {yardstick:.2e}"


def _worst_row(result: torch.Tensor, truth: torch.Tensor) -> float:
    rows = ~truth[..., 0].isnan()
    difference = (result.double() - truth)[rows].norm(dim=-1)
    return float((difference / truth[rows].norm(dim=-1).clamp_min(1e-9)).max())


def torch_attention(
    call: dict[str, Any],
    *,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """PyTorch's eager attention in the query's dtype: GEMM, FP32 softmax, GEMM."""
    import torch

    query, dtype = call["query"], call["query"].dtype
    output = torch.full_like(query, math.nan)
    starts, group = call["query_start"].tolist(), query.shape[1] // call["key_pages"].shape[2]
    page = call["key_pages"].shape[1]
    for sequence, length in enumerate(call["seq_lens"].tolist()):
        begin, end = starts[sequence], starts[sequence + 1]
        if begin == end:
            continue
        used = call["block_table"][sequence, : -(-length // page)].long()
        dense = []
        for name in ("key", "value"):
            tokens = call[f"{name}_pages"][used].flatten(0, 1)[:length]
            if f"{name}_scale" in call:
                tokens = tokens.float() * call[f"{name}_scale"]
            dense.append(tokens.to(dtype).transpose(0, 1).repeat_interleave(group, dim=0))
        scores = (query[begin:end].transpose(0, 1) @ dense[0].mT).float() * call["scale"]
        if soft_cap:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        last = torch.arange(length - end + begin, length, device=query.device)[:, None]
        position = torch.arange(length, device=query.device)[None, :]
        hidden = (position > last) | ((position <= last - window) if window else False)
        scores.masked_fill_(hidden, -math.inf)
        if sinks is not None:
            extra = sinks.float()[:, None, None].expand(-1, end - begin, 1)
            scores = torch.cat([scores, extra], dim=-1)
        weights = torch.softmax(scores, dim=-1)[..., :length].to(dtype)
        output[begin:end] = (weights @ dense[1]).transpose(0, 1)
    return output
