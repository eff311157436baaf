"""How vLLM's CPU backend keeps K and V, release by release.

| vLLM | cache of a layer | who writes a call's K and V | where the packing is named |
|---|---|---|---|
| 0.18-0.22 | ``[2, num_blocks, num_kv_heads, block_size, head_size]`` | ``forward`` | metadata |
| 0.23 | ``[num_blocks, num_kv_heads, block_size, 2 * head_size]`` | ``forward`` | metadata |
| 0.24-0.28 | same | vLLM, before ``forward`` | impl |
| 0.29-0.32 | same | vLLM, before ``forward`` | layer |

Read from v1/attention/backends/cpu_attn.py of each minor release; 0.18.1, 0.23.0, 0.28.0 and 0.32.0
were also run. Nothing here asks for the version: the tensor's rank and the backend's own attributes
tell, and :func:`misread` has vLLM write one page and compares, before any kernel reads a cache.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

Halves = tuple[torch.Tensor, torch.Tensor]

_SEPARATE_HALVES_RANK = 5


def page_tokens(kv_cache: torch.Tensor) -> int:
    """Tokens per page: the last dimension but one in every release."""
    return int(kv_cache.shape[-2])


def key_and_value_pages(kv_cache: torch.Tensor, head_size: int) -> Halves:
    """The cache as the kernels read it, without a copy.

    Args:
        kv_cache: a layer's cache in either layout; pages need not be adjacent in memory.
        head_size: elements of one head.

    Returns:
        K as ``[num_blocks, num_kv_heads, head_size, block_size]`` and V as
        ``[num_blocks, num_kv_heads, block_size, head_size]``.
    """
    block_size = page_tokens(kv_cache)
    keys, values = _halves(kv_cache)
    return keys.unflatten(-1, (head_size, block_size)), values.unflatten(
        -1, (block_size, head_size)
    )


def packing(*owners: object) -> str | None:
    """vLLM's name for how K is packed in a page, from the first owner that has one."""
    names = (getattr(owner, "isa", None) for owner in owners)
    return next((name for name in names if name is not None), None)


def write(
    impl: Any,
    layer: Any,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    metadata: Any,
) -> None:
    """Puts a call's K and V into the cache, where vLLM leaves that to ``forward``.

    A later ``forward`` of vLLM's own may write them once more: the same values to the same slots.
    """
    scales = {}
    if _takes_scales():
        scales = {
            "k_scale": layer._k_scale_float,
            "v_scale": layer._v_scale_float,
            "kv_cache_dtype": impl.kv_cache_dtype,
        }
    keys, values = as_vllm_writes(kv_cache, impl.head_size)
    name = packing(layer, impl, metadata)
    _reshape_and_cache()(key, value, keys, values, metadata.slot_mapping, name, **scales)


def misread(kv_cache: torch.Tensor, head_size: int, packing_name: str | None) -> str | None:
    """Why the kernels would misread this cache, or None when they read what vLLM writes.

    Lets vLLM write one page of random numbers in this layer's shape, dtype and packing, and reads
    it back the way the kernels do.
    """
    *_, num_kv_heads, block_size, _ = kv_cache.shape
    return _misread(
        kv_cache.dim(), num_kv_heads, block_size, head_size, kv_cache.dtype, packing_name
    )


@functools.cache
def _misread(
    rank: int,
    num_kv_heads: int,
    block_size: int,
    head_size: int,
    dtype: torch.dtype,
    packing_name: str | None,
) -> str | None:
    refusal = f"cache packing {packing_name}"
    if packing_name is None or not dtype.is_floating_point or dtype.itemsize < 2:
        return refusal
    if rank == _SEPARATE_HALVES_RANK:
        page = torch.zeros(2, 1, num_kv_heads, block_size, head_size, dtype=dtype)
    else:
        page = torch.zeros(1, num_kv_heads, block_size, 2 * head_size, dtype=dtype)
    random = torch.Generator().manual_seed(0)
    shape = (2, block_size, num_kv_heads, head_size)
    key, value = torch.randn(shape, generator=random).to(dtype).unbind(0)
    slots = torch.arange(block_size)
    _reshape_and_cache()(key, value, *as_vllm_writes(page, head_size), slots, packing_name)
    keys, values = key_and_value_pages(page, head_size)
    same = torch.equal(keys[0], key.permute(1, 2, 0)) and torch.equal(
        values[0], value.transpose(0, 1)
    )
    return None if same else refusal


def _halves(kv_cache: torch.Tensor) -> Halves:
    """K and V as ``[num_blocks, num_kv_heads, block_size * head_size]`` each."""
    if kv_cache.dim() == _SEPARATE_HALVES_RANK:
        keys, values = kv_cache.unbind(0)
        return _flat(keys), _flat(values)
    num_blocks, num_kv_heads, block_size, both = kv_cache.shape
    joined = kv_cache.view(num_blocks, num_kv_heads, 2, block_size * both // 2)
    return joined[:, :, 0], joined[:, :, 1]


def _flat(pages: torch.Tensor) -> torch.Tensor:
    num_blocks, num_kv_heads, block_size, head_size = pages.shape
    return pages.view(num_blocks, num_kv_heads, block_size * head_size)


def as_vllm_writes(kv_cache: torch.Tensor, head_size: int) -> Halves:
    """The two arguments that ``CPUAttentionBackendImpl`` makes of its cache for the same call."""
    block_size = page_tokens(kv_cache)
    keys, values = _halves(kv_cache)
    return keys.unflatten(-1, (block_size, head_size)), values.unflatten(
        -1, (block_size, head_size)
    )


@functools.cache
def _reshape_and_cache() -> Any:
    from vllm import _custom_ops

    return _custom_ops.cpu_attn_reshape_and_cache


@functools.cache
def _takes_scales() -> bool:
    """Since 0.23 vLLM hands over the scales of a quantised cache."""
    code = _reshape_and_cache().__code__
    return "k_scale" in code.co_varnames[: code.co_argcount]
