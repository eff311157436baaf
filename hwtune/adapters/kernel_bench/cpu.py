"""Our CPU kernels against vLLM's CPU attention, on vLLM's own cache layout."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from hwtune.adapters.kernel_bench.timing import Inputs, Runner
from hwtune.adapters.vllm.cpu_cache import as_vllm_writes, key_and_value_pages
from hwtune.domain.errors import ExternalFailureError
from hwtune.domain.kernel_timing import CallCase

BASELINE = "vLLM CPU_ATTN"
IMPLEMENTATIONS = {"prefill": "prefill.cpu", "decode": "decode.cpu"}


def wall_clock(call: Callable[[], None]) -> float:
    """Seconds of one call on the CPU."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def runners(
    case: CallCase, inputs: Inputs, implementation: str, kernel: Callable[..., Any]
) -> tuple[Runner, Runner]:
    """Ours and vLLM's over the same cache. Our kernels take one sequence: so does the case.

    Raises:
        ExternalFailureError: vLLM keeps the cache in a form that our kernels do not read.
    """
    cache = _cache(case, inputs)
    keys, values = key_and_value_pages(cache, case.head_size)
    same = torch.equal(keys.permute(0, 3, 1, 2), inputs.keys) and torch.equal(
        values.transpose(1, 2), inputs.values
    )
    if not same:
        message = "vLLM packs its cache here in a way that the CPU kernels do not read"
        raise ExternalFailureError(message)
    output = torch.empty_like(inputs.query)

    def ours() -> None:
        kernel(
            query=inputs.query,
            key_pages=keys,
            value_pages=values,
            block_table=inputs.block_table[0],
            context_len=case.context,
            scale=inputs.scale,
            output=output,
        )

    return Runner(name=implementation, run=ours, output=output), _vllm(case, inputs, cache)


def _cache(case: CallCase, inputs: Inputs) -> torch.Tensor:
    """Written by vLLM itself: ``[num_blocks, num_kv_heads, page, 2 * head_size]``."""
    from vllm import _custom_ops as ops

    blocks, page = inputs.keys.shape[:2]
    shape = (blocks, case.num_kv_heads, page, 2 * case.head_size)
    cache = torch.zeros(shape, dtype=inputs.keys.dtype)
    tokens = (inputs.keys.flatten(0, 1), inputs.values.flatten(0, 1))
    slots = torch.arange(blocks * page)
    halves = as_vllm_writes(cache, case.head_size)
    ops.cpu_attn_reshape_and_cache(*tokens, *halves, slots, _packing(case, inputs))
    return cache


def _packing(case: CallCase, inputs: Inputs) -> str:
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends import cpu_attn

    current_platform.import_kernels()
    return str(cpu_attn._get_attn_isa(inputs.keys.dtype, case.page, case.head_size))


def _vllm(case: CallCase, inputs: Inputs, cache: torch.Tensor) -> Runner:
    """vLLM's CPU attention, its scheduler metadata made once as in serving (0.29 to 0.32)."""
    from vllm import _custom_ops as ops

    keys, values = as_vllm_writes(cache, case.head_size)
    starts = torch.tensor([0, case.query], dtype=torch.int32)
    lengths = torch.tensor([case.context], dtype=torch.int32)
    output = torch.empty_like(inputs.query)
    metadata = ops.cpu_attn_get_scheduler_metadata(
        num_reqs=1,
        num_heads=case.num_heads,
        num_kv_heads=case.num_kv_heads,
        head_dim=case.head_size,
        seq_lens=lengths,
        dtype=inputs.query.dtype,
        query_start_loc=starts,
        causal=True,
        sliding_window_size=-1,
        isa=_packing(case, inputs),
        enable_kv_split=True,
    )

    def run() -> None:
        ops.cpu_attention_with_kv_cache(
            query=inputs.query,
            key_cache=keys,
            value_cache=values,
            output=output,
            query_start_loc=starts,
            seq_lens=lengths,
            scale=inputs.scale,
            causal=True,
            alibi_slopes=None,
            sliding_window=-1,
            block_table=inputs.block_table,
            softcap=0,
            scheduler_metadata=metadata,
            s_aux=None,
            dynamic_causal=None,
            k_scale=1.0,
            v_scale=1.0,
            kv_cache_dtype="auto",
        )

    return Runner(name=BASELINE, run=run, output=output)
