"""How the kernels for GPUs are called from vLLM's Triton backend. Not run on a GPU yet."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from hwtune.adapters.vllm.backend import DispatchingImpl
from hwtune.adapters.vllm.dispatch import BoundKernel
from hwtune.adapters.vllm.replays import ReplayWatch, watch_of
from hwtune.domain.kernel import LayerTraits

_FP8 = ("fp8", "fp8_e4m3")
"""Caches with one scale per tensor that vLLM reads as the platform's FP8 type."""
_PLAIN = ("auto", "float16", "bfloat16", *_FP8)
_BOTH = 2


class TritonDispatch(DispatchingImpl):
    """Mixed in before vLLM's ``TritonAttentionImpl``.

    Two cache layouts are read, both as views without a copy: since 0.28
    ``[num_blocks, num_kv_heads, block_size, K | V]``, whatever lies behind it in memory, and before
    ``[num_blocks, 2, block_size, num_kv_heads, head_size]``.
    """

    _hwtune_extras: dict[str, Any]
    _hwtune_watch: ReplayWatch | None = None

    def _select(
        self,
        layer: Any,
        query: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: Any,
        fused_output: bool,
    ) -> BoundKernel | None:
        kernel = super()._select(layer, query, kv_cache, metadata, fused_output)
        if self._hwtune_watch is not None:
            self._hwtune_watch.calls += 1
        return kernel

    def count(
        self, kernel: BoundKernel, kv_cache: torch.Tensor, metadata: Any, capturing: bool
    ) -> None:
        """Also remembers whose calls graphs hold."""
        super().count(kernel, kv_cache, metadata, capturing)
        if capturing and self._hwtune_watch is not None:
            self._hwtune_watch.captured[id(kernel)] = kernel

    def layer_traits(
        self, layer: Any, query: torch.Tensor, kv_cache: torch.Tensor, metadata: Any
    ) -> LayerTraits:
        """The common traits; a cache that the kernels cannot read is a refusal."""
        me: Any = self
        self._hwtune_extras = self._extras(layer)
        self._hwtune_watch = watch_of(getattr(layer, "layer_name", "?"))
        return dataclasses.replace(
            super().layer_traits(layer, query, kv_cache, metadata),
            chunked=getattr(me, "chunk_lookback", -1) > -1,
            unreadable_cache=self._unreadable(kv_cache),
        )

    def _unreadable(self, kv_cache: torch.Tensor) -> str | None:
        me: Any = self
        if me.forward_writes_cache:
            return "forward writes the cache (vLLM before 0.18)"
        if me.kv_cache_dtype not in _PLAIN:
            return f"{me.kv_cache_dtype} cache"
        shape = tuple(kv_cache.shape)
        if (len(shape), shape[-1]) == (4, _BOTH * me.head_size) and shape[1] == me.num_kv_heads:
            return None
        if len(shape) == 5 and (shape[1], *shape[3:]) == (_BOTH, me.num_kv_heads, me.head_size):
            return None
        return f"cache shape {shape}"

    def page_tokens(self, kv_cache: torch.Tensor) -> int:
        """Dimension 2 of either layout."""
        return int(kv_cache.shape[2])

    def other_mask(self, metadata: Any) -> str:
        """Masks that vLLM's metadata can bring and the kernels do not compute."""
        if getattr(metadata, "mm_prefix_range", None) is not None:
            return "multimodal prefix"
        if getattr(metadata, "rswa_prefix_lens", None) is not None:
            return "retained sliding window"
        if getattr(metadata, "use_cascade", False):
            return "cascade attention"
        return ""

    def call_kernel(
        self, run: Any, query: torch.Tensor, kv_cache: torch.Tensor, metadata: Any, output: Any
    ) -> Any:
        """Calls a kernel for the whole batch; no size of it is read back from the device."""
        me: Any = self
        keys, values = self._pages(kv_cache)
        tokens = metadata.num_actual_tokens
        shape = (tokens, me.num_heads, me.head_size)
        more: dict[str, Any] = {}
        if getattr(run, "wants_max_context_len", False):
            more["max_context_len"] = self.context_len(metadata)
        return run(
            query=query[:tokens].view(shape),
            key_pages=keys,
            value_pages=values,
            block_table=metadata.block_table,
            seq_lens=metadata.seq_lens,
            scale=me.scale,
            output=output[:tokens].view(shape),
            query_start=metadata.query_start_loc,
            max_query_len=metadata.max_query_len,
            **more,
            **self._hwtune_extras,
        )

    def _pages(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V ``[num_blocks, block_size, num_kv_heads, head_size]``."""
        me: Any = self
        if kv_cache.dim() == 5:
            keys, values = kv_cache.unbind(1)
        else:
            keys, values = kv_cache.transpose(1, 2).split(me.head_size, dim=-1)
        if me.kv_cache_dtype in _FP8 and keys.dtype != me.fp8_dtype:
            return keys.view(me.fp8_dtype), values.view(me.fp8_dtype)
        return keys, values

    def _extras(self, layer: Any) -> dict[str, Any]:
        """What this layer has besides plain attention, under the kernels' names."""
        me: Any = self
        extras: dict[str, Any] = {}
        left = me.sliding_window[0]  # vLLM counts the keys before the token, not itself
        if left >= 0:
            extras["window"] = left + 1
        if me.logits_soft_cap:
            extras["soft_cap"] = float(me.logits_soft_cap)
        if getattr(me, "sinks", None) is not None:
            extras["sinks"] = me.sinks
        if me.kv_cache_dtype in _FP8:
            # Tensors on the device, so that a graph replays with the scales of that moment.
            extras |= {"key_scale": layer._k_scale, "value_scale": layer._v_scale}
        return extras
