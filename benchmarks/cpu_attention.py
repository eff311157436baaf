"""CPU kernels against vLLM's own CPU attention, interleaved in one process; prints ratios.

Scope: the kernel alone. Run with the demo's environment: ``.venv/bin/python
benchmarks/cpu_attention.py``. Each shape is timed in pairs (ours, vLLM's, vLLM's, ours, …); the
ratio is the median of the pairs' ratios, with the interval in which half of them lie. A shape whose
outputs disagree prints no ratio.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from hwtune_kernels.page_decode.cpu import page_decode_attention
from hwtune_kernels.prefill.cpu import prefill_attention
from vllm import _custom_ops as ops
from vllm.platforms import current_platform
from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

BLOCK_SIZE = 832
PREFILL = [(64, 1024), (128, 2048), (512, 512), (512, 2048), (1024, 1024), (2048, 2048)]
DECODE = [(1, 512), (1, 2048), (1, 8192), (1, 16384)]
HEADS = [(6, 1, 64), (24, 4, 256)]
TOLERANCE = 0.02
"""Largest accepted absolute difference of the outputs, whose values are of order 1, in BF16."""


def main() -> None:
    """Prints one line per shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    current_platform.import_kernels()
    print("scope: kernel alone; baseline: vLLM CPU_ATTN; page 832; one core")
    print("heads/kv/size     q      T   vLLM ms   ours ms   ratio  [half of the pairs]  max |diff|")
    for heads in HEADS:
        for query, context in PREFILL + DECODE:
            print(measure(heads, query, context, getattr(torch, arguments.dtype), arguments.pairs))


def measure(
    heads: tuple[int, int, int], query: int, context: int, dtype: torch.dtype, pairs: int
) -> str:
    """One shape: correctness first, then the pairs."""
    ours, theirs, difference = build(heads, query, context, dtype)
    name = f"{heads[0]:2d}/{heads[1]}/{heads[2]:3d}    {query:6d} {context:6d}"
    if difference > TOLERANCE:
        return f"{name}  outputs differ by {difference:.4f}: no ratio"
    times: list[tuple[float, float]] = []
    for index in range(pairs):
        if index % 2:
            b, a = timed(theirs), timed(ours)
        else:
            a, b = timed(ours), timed(theirs)
        times.append((a, b))
    ratios = sorted(b / a for a, b in times)
    low, _, high = statistics.quantiles(ratios, n=4)
    ours_ms = 1e3 * statistics.median(a for a, _ in times)
    theirs_ms = 1e3 * statistics.median(b for _, b in times)
    ratio = statistics.median(ratios)
    return (
        f"{name} {theirs_ms:9.3f} {ours_ms:9.3f}  {ratio:5.2f}x  [{low:5.2f}, {high:5.2f}]"
        f"      {difference:.4f}"
    )


def build(
    heads: tuple[int, int, int], query: int, context: int, dtype: torch.dtype
) -> tuple[Callable[[], None], Callable[[], None], float]:
    """Both attentions over the same shuffled pages, and how far their outputs are apart."""
    num_heads, num_kv_heads, head_size = heads
    torch.manual_seed(query + context)
    pages = -(-context // BLOCK_SIZE)
    blocks = pages + 3
    cache = torch.randn(blocks, num_kv_heads, 2 * BLOCK_SIZE, head_size).to(dtype)
    halves = cache.view(blocks, num_kv_heads, 2, BLOCK_SIZE * head_size)
    table = torch.randperm(blocks)[:pages].int()
    q = torch.randn(query, num_heads, head_size).to(dtype)
    ours_out, theirs_out = torch.empty_like(q), torch.empty_like(q)
    kernel = page_decode_attention if query == 1 else prefill_attention
    theirs = vllm_attention(cache, table, q, theirs_out, context)

    def ours() -> None:
        kernel(
            query=q,
            key_pages=halves[:, :, 0].unflatten(-1, (head_size, BLOCK_SIZE)),
            value_pages=halves[:, :, 1].unflatten(-1, (BLOCK_SIZE, head_size)),
            block_table=table,
            context_len=context,
            scale=head_size**-0.5,
            output=ours_out,
        )

    ours()
    theirs()
    return ours, theirs, float((ours_out.float() - theirs_out.float()).abs().max())


def vllm_attention(
    cache: torch.Tensor, table: torch.Tensor, q: torch.Tensor, out: torch.Tensor, context: int
) -> Callable[[], None]:
    """vLLM's CPU attention for one sequence, its scheduler metadata made once as in serving."""
    query, num_heads, head_size = q.shape
    keys, values = cache.chunk(2, dim=2)
    starts = torch.tensor([0, query], dtype=torch.int32)
    lengths = torch.tensor([context], dtype=torch.int32)
    metadata = ops.cpu_attn_get_scheduler_metadata(
        num_reqs=1,
        num_heads=num_heads,
        num_kv_heads=cache.shape[1],
        head_dim=head_size,
        seq_lens=lengths,
        dtype=q.dtype,
        query_start_loc=starts,
        causal=True,
        sliding_window_size=-1,
        isa=_get_attn_isa(q.dtype, BLOCK_SIZE, head_size),
        enable_kv_split=True,
    )

    def run() -> None:
        ops.cpu_attention_with_kv_cache(
            query=q,
            key_cache=keys,
            value_cache=values,
            output=out,
            query_start_loc=starts,
            seq_lens=lengths,
            scale=head_size**-0.5,
            causal=True,
            alibi_slopes=None,
            sliding_window=-1,
            block_table=table.view(1, -1),
            softcap=0,
            scheduler_metadata=metadata,
            s_aux=None,
            dynamic_causal=None,
            k_scale=1.0,
            v_scale=1.0,
            kv_cache_dtype="auto",
        )

    return run


def timed(call: Callable[[], None]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
