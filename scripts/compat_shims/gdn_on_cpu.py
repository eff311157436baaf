"""Lets vLLM 0.18's CPU build compute Gated DeltaNet layers, which it has no CPU code for.

The wheel serves no hybrid model on a CPU: every recurrent layer calls Triton kernels, and Triton has
no CPU backend there. This replaces the core of that one layer (convolution, gates, delta rule) by
plain PyTorch, and two helpers beside it that fail on a CPU. What a compatibility run looks at stays
vLLM's: the page rule, the cache and its layout, the scheduler, attention.

Installed into the compatibility environment of 0.18 by ``scripts/compat.py`` with a ``.pth`` file;
it is not part of the hwtune package.
"""

import ctypes
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_MODULE = "vllm.model_executor.models.qwen3_next"


def forward_core(self: Any, mixed_qkv: Any, b: Any, a: Any, core_attn_out: Any) -> None:
    """``Qwen3NextGatedDeltaNet._forward_core`` without speculation, one token after the other.

    Source: the delta rule with gates as in Gated DeltaNet, state ``[value heads, value dim, key
    dim]`` and convolution state as vLLM keeps them.
    """
    from vllm.forward_context import get_forward_context

    context = get_forward_context()
    if context.attn_metadata is None:
        return
    metadata = context.attn_metadata[self.prefix]
    if metadata.spec_sequence_masks is not None:
        message = "this stand-in has no speculative decoding"
        raise NotImplementedError(message)
    convolutions, states = self.kv_cache[context.virtual_engine]
    starts = metadata.non_spec_query_start_loc.tolist()
    known = metadata.has_initial_state
    for index in range(metadata.num_prefills + metadata.num_decodes):
        slot = int(metadata.non_spec_state_indices_tensor[index])
        rows = slice(starts[index], starts[index + 1])
        if known is not None and not bool(known[index]):
            convolutions[slot].zero_()
            states[slot].zero_()
        mixed = _convolve(self, mixed_qkv[rows], convolutions[slot])
        core_attn_out[rows] = _delta_rule(self, mixed, b[rows], a[rows], states[slot])


def _convolve(layer: Any, mixed: Any, state: Any) -> Any:
    """Causal convolution; ``state`` keeps the last inputs, ``[kernel - 1, channels]``."""
    import torch

    weight = layer.conv1d.weight.squeeze(1).float()
    history = torch.cat([state.float(), mixed.float()])
    state.copy_(history[-state.shape[0] :])
    windows = history.unfold(0, weight.shape[-1], 1)
    return torch.nn.functional.silu((windows * weight).sum(-1))


def _delta_rule(layer: Any, mixed: Any, b: Any, a: Any, state: Any) -> Any:
    import torch
    from torch.nn.functional import normalize, softplus

    query, key, value = layer.rearrange_mixed_qkv(mixed)
    group = value.shape[2] // key.shape[2]
    query = normalize(query[0], dim=-1).repeat_interleave(group, 1) * query.shape[-1] ** -0.5
    key = normalize(key[0], dim=-1).repeat_interleave(group, 1)
    decay = (-layer.A_log.float().exp() * softplus(a.float() + layer.dt_bias.float())).exp()
    beta = b.float().sigmoid()
    memory, results = state.float(), []
    for token in range(key.shape[0]):
        memory = memory * decay[token, :, None, None]
        error = value[0, token] - (memory @ key[token, :, :, None]).squeeze(-1)
        memory = memory + (error * beta[token, :, None])[:, :, None] * key[token, :, None, :]
        results.append((memory @ query[token, :, :, None]).squeeze(-1))
    state.copy_(memory)
    return torch.stack(results)


def _leave_convolutions_alone() -> None:
    """0.18 packs every linear layer's weight for its CPU GEMM, and fails at a convolution's."""
    from vllm.model_executor.layers import utils

    pack = utils.dispatch_cpu_unquantized_gemm

    def pack_matrices(layer: Any, remove_weight: bool) -> None:
        if layer.weight.dim() == 2:
            pack(layer, remove_weight)

    utils.dispatch_cpu_unquantized_gemm = pack_matrices


def _zero_blocks_without_triton() -> None:
    """0.18 clears new pages of hybrid models with a Triton kernel."""
    from vllm.v1.worker.utils import KVBlockZeroer

    def zero_block_ids(self: Any, block_ids: list[int]) -> None:
        if not block_ids or self._meta is None:
            return
        addresses, page_words, *_ = self._meta
        page_bytes = 4 * page_words
        for address in addresses.tolist():
            for block in block_ids:
                ctypes.memset(address + block * page_bytes, 0, page_bytes)

    KVBlockZeroer.zero_block_ids = zero_block_ids


class _AfterQwen3Next(importlib.abc.MetaPathFinder):
    """Replaces the method once the module has been executed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            module.Qwen3NextGatedDeltaNet._forward_core = forward_core
            _leave_convolutions_alone()
            _zero_blocks_without_triton()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _AfterQwen3Next())
