"""Dispatch on vLLM's CPU backend."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from hwtune.adapters.vllm import cpu_cache
from hwtune.adapters.vllm.backend import DispatchingImpl
from hwtune.domain.kernel import LayerTraits


class CPUDispatch(DispatchingImpl):
    """vLLM's CPU cache, in the layout of the release that runs: see :mod:`cpu_cache`."""

    def layer_traits(
        self, layer: Any, query: torch.Tensor, kv_cache: torch.Tensor, metadata: Any
    ) -> LayerTraits:
        """The common traits; a cache that the kernels would misread is a refusal."""
        traits = super().layer_traits(layer, query, kv_cache, metadata)
        packing = cpu_cache.packing(layer, self, metadata)
        unreadable = cpu_cache.misread(kv_cache, traits.head_size, packing)
        if getattr(metadata, "use_sdpa_prefill", False):
            unreadable = "prefill apart from the cache (SDPA)"
        return dataclasses.replace(traits, unreadable_cache=unreadable)

    def context_len(self, metadata: Any) -> int:
        """Exact for one sequence, because its length is in CPU memory anyway."""
        lengths = metadata.seq_lens
        return int(lengths[0]) if len(lengths) == 1 else int(metadata.max_seq_len)

    def page_tokens(self, kv_cache: torch.Tensor) -> int:
        """The last dimension but one of the cache."""
        return cpu_cache.page_tokens(kv_cache)

    def write_cache(
        self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: Any, metadata: Any
    ) -> None:
        """As vLLM's own ``forward`` writes it, up to 0.23."""
        cpu_cache.write(self, layer, key, value, kv_cache, metadata)

    def call_kernel(
        self, run: Any, query: torch.Tensor, kv_cache: torch.Tensor, metadata: Any, output: Any
    ) -> Any:
        """Splits each page into K ``[head, block]`` and V ``[block, head]`` without a copy."""
        me: Any = self
        head_size: int = me.head_size
        key_pages, value_pages = cpu_cache.key_and_value_pages(kv_cache, head_size)
        tokens = metadata.num_actual_tokens
        return run(
            query=query[:tokens].view(tokens, me.num_heads, head_size),
            key_pages=key_pages,
            value_pages=value_pages,
            block_table=metadata.block_table[0],
            context_len=self.context_len(metadata),
            scale=me.scale,
            output=output[:tokens].view(tokens, me.num_heads, head_size),
        )
