"""Runs hwtune's Triton backend of real vLLM on CPU tensors; prints what happened as JSON.

A process of its own: Triton must be told to interpret before vLLM imports it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from types import SimpleNamespace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"
# vLLM configures its logging when an engine starts; here the test does.
logging.basicConfig(level=logging.INFO)

import torch
from hwtune_kernels.reference import batched_paged_attention
from vllm.plugins import load_general_plugins

load_general_plugins()
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.attention.backends.triton_attn import TritonAttentionImpl, TritonAttentionMetadata

from hwtune.adapters.vllm import backend as backends

GENERIC = 7.0
HEADS, SIZE, PAGE, BLOCKS = 6, 64, 64, 12
BACKEND = AttentionBackendEnum.CUSTOM.get_class()


def vllms_own(self: Any, *call: Any, **more: Any) -> torch.Tensor:
    """Triton has no driver here, so vLLM's own path only leaves a mark."""
    output: torch.Tensor = call[6]
    return output.fill_(GENERIC)


TritonAttentionImpl.forward = vllms_own


def cache(layout: str) -> torch.Tensor:
    """``[blocks, kv_heads, page, K|V]``, the heads or the tokens outermost within a page."""
    torch.manual_seed(1)
    if layout == "tokens outermost":
        memory = torch.randn(BLOCKS, PAGE, 1, 2 * SIZE, dtype=torch.float16)
        return memory.transpose(1, 2)
    return torch.randn(BLOCKS, 1, PAGE, 2 * SIZE, dtype=torch.float16)


def metadata(lengths: list[int], new: list[int], **more: Any) -> TritonAttentionMetadata:
    table = torch.arange(BLOCKS, dtype=torch.int32).flip(0).repeat(len(lengths), 1)
    unused = torch.empty(0)
    built = {
        "num_actual_tokens": sum(new),
        "max_query_len": max(new),
        "query_start_loc": torch.tensor([0, *new]).cumsum(0).int(),
        "max_seq_len": max(lengths),
        "seq_lens": torch.tensor(lengths, dtype=torch.int32),
        "block_table": table,
        "slot_mapping": unused,
        "seq_threshold_3D": 1,
        "num_par_softmax_segments": 16,
        "softmax_segm_output": unused,
        "softmax_segm_max": unused,
        "softmax_segm_expsum": unused,
        "causal": True,
    }
    return TritonAttentionMetadata(**built | more)


def layer(name: str, **more: Any) -> Any:
    impl = BACKEND.get_impl_cls()(
        **{
            "num_heads": HEADS,
            "head_size": SIZE,
            "scale": SIZE**-0.5,
            "num_kv_heads": 1,
            "alibi_slopes": None,
            "sliding_window": None,
            "kv_cache_dtype": "auto",
        }
        | more
    )
    one = torch.tensor(1.0)
    return impl, SimpleNamespace(layer_name=name, _k_scale=one, _v_scale=one)


def forward(
    built: Any, kv: torch.Tensor, call: TritonAttentionMetadata, **extras: Any
) -> dict[str, Any]:
    """How far the output is from the reference, and whether vLLM's own path wrote it."""
    impl, module = built
    padded = call.num_actual_tokens + 2
    query = torch.randn(padded, HEADS, SIZE, dtype=torch.float16)
    output = torch.full_like(query, float("nan"))
    impl.forward(module, query, None, None, kv, call, output)
    keys, values = kv.transpose(1, 2).split(SIZE, dim=-1)
    truth = torch.full_like(output, float("nan"), dtype=torch.float64)
    batched_paged_attention(
        query,
        keys,
        values,
        call.block_table,
        call.seq_lens,
        impl.scale,
        truth,
        query_start=call.query_start_loc,
        **extras,
    )
    used = ~truth.isnan()
    difference = (output.double() - truth)[used].abs().max()
    return {
        "generic": bool((output == GENERIC).all()),
        "error": float(difference),
        "padding_untouched": bool(output[~used].isnan().all()),
    }


def main() -> None:
    plain = layer("plain")
    sinks = torch.linspace(-2, 2, HEADS)
    kv, other = cache("tokens outermost"), cache("heads outermost")
    found = {
        "decode": forward(plain, kv, metadata([65, 1, 130], [1, 1, 1])),
        "padded decode": forward(plain, other, metadata([65, 0, 0], [1, 0, 0])),
        "drafts": forward(plain, kv, metadata([65, 130], [3, 3])),
        "prefill": forward(plain, kv, metadata([150], [70])),
        "mixed": forward(plain, kv, metadata([65, 70], [1, 20])),
        "window": forward(layer("window", sliding_window=33), kv, metadata([130], [1]), window=33),
        "cap and sinks": forward(
            layer("capped", logits_soft_cap=3.0, sinks=sinks),
            kv,
            metadata([130], [12]),
            soft_cap=3.0,
            sinks=sinks,
        ),
        "chunked": forward(
            layer("chunked", sliding_window=32, chunk_lookback=0), kv, metadata([30], [1])
        ),
        "prefix": forward(plain, kv, metadata([65], [1], mm_prefix_range={0: [(1, 2)]})),
        "per sequence": forward(plain, kv, metadata([65], [1], causal=torch.ones(1))),
        "int8": forward(
            layer("int8", kv_cache_dtype="int8_per_token_head"), kv, metadata([65], [1])
        ),
    }
    backends._is_capturing = lambda tensor: True
    found["captured decode"] = forward(plain, kv, metadata([65, 1], [1, 1]))
    found["captured prefill"] = forward(plain, kv, metadata([150], [70]))
    builder = BACKEND.get_builder_cls()
    found["graphs"] = builder.get_cudagraph_support(None, None).name
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
