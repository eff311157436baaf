"""Prefill on Ascend: one call of torch_npu's fused inference attention over a paged cache.

The operator is Huawei's; what is here is the call. Layout TND: the sequences' new tokens one after
the other, their lengths cumulative; ``sparse_mode`` 3: causal from the right, with one compressed
mask for every shape. So chunked prefill, prefill after a prefix hit, decodes and mixed steps are
the same call, as in vllm-ascend 0.18 (attention/attention_v1.py forward_fused_infer_attention).

Not run on an NPU. The argument names are checked against torch_npu 2.13.0's own schema, and the
call was made there on meta tensors, which computes shapes and nothing else.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

OPERATOR = "npu_fused_infer_attention_score"
SCHEMA_FILE = Path(__file__).with_name("npu_schema.json")

KERNEL_BLOCK_TOKENS = 128
"""Tokens per block of the cache that the operator reads: vllm-ascend cuts each page into these
(attention_v1.py get_supported_kernel_block_sizes)."""

MASK_TOKENS = 2048
"""Edge of the compressed mask of sparse modes 2 to 4 (CANN documentation of the operator;
vllm-ascend attention/attention_mask.py)."""

_CAUSAL_FROM_THE_RIGHT = 3


def prefill_attention(
    query: torch.Tensor,
    key_blocks: torch.Tensor,
    value_blocks: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: Sequence[int],
    scale: float,
    output: torch.Tensor,
    *,
    query_lens: Sequence[int],
    operator: Callable[..., Any] | None = None,
) -> None:
    """Causal attention of each sequence's newest tokens over its whole context.

    The result is that of :func:`hwtune_kernels.reference.batched_paged_attention`, whose cache
    layout it has; lengths are lists, because the operator wants them on the host.

    Args:
        query: ``[num_tokens, num_heads, head_size]``, the sequences one after the other.
        key_blocks: ``[num_blocks, 128, num_kv_heads, head_size]``, contiguous.
        value_blocks: as ``key_blocks``.
        block_table: ``[num_sequences, >= blocks]`` int32, physical block of each logical block.
        seq_lens: tokens of each sequence, the new ones included.
        scale: factor on Q·K.
        output: ``[num_tokens, num_heads, head_size]``, overwritten.
        query_lens: new tokens of each sequence, at least 1.
        operator: for tests; torch_npu's own otherwise.

    Raises:
        ValueError: shapes, lengths or the block do not fit what the operator is told.
        ImportError: torch_npu is not installed or lacks the operator or one of its arguments.
    """
    arguments = fia_arguments(
        query, key_blocks, value_blocks, block_table, seq_lens, scale, query_lens=query_lens
    )
    run = _operator() if operator is None else operator
    result, _ = run(**arguments)
    tokens = sum(query_lens)
    output[:tokens] = result.view(tokens, *output.shape[1:])


def varlen_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool,
    scale: float,
    out: torch.Tensor,
) -> None:
    """The NPU's provider: the interface of :mod:`hwtune_kernels.prefill.varlen`.

    The operator wants its lengths on the host, so lengths on the device are waited for.

    Raises:
        ValueError: as :func:`prefill_attention`, or attention that is not causal.
        ImportError: as :func:`prefill_attention`.
    """
    if not causal:
        message = f"{OPERATOR} is called for causal attention only"
        raise ValueError(message)
    lengths, news = seqused_k.tolist(), cu_seqlens_q.diff().tolist()
    prefill_attention(q, k, v, block_table, lengths, scale, out, query_lens=news)


def fia_arguments(
    query: torch.Tensor,
    key_blocks: torch.Tensor,
    value_blocks: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: Sequence[int],
    scale: float,
    *,
    query_lens: Sequence[int],
) -> dict[str, Any]:
    """The operator's keyword arguments; those of :func:`prefill_attention` otherwise.

    Raises:
        ValueError: what does not fit.
    """
    _check(query, key_blocks, value_blocks, block_table, seq_lens, query_lens)
    num_blocks, block_size, num_kv_heads, head_size = key_blocks.shape
    tokens = sum(query_lens)
    flat = (num_blocks, block_size, num_kv_heads * head_size)
    return {
        "query": query[:tokens],
        "key": key_blocks.view(flat),
        "value": value_blocks.view(flat),
        "atten_mask": _mask(query.device),
        "block_table": block_table,
        "input_layout": "TND",
        "block_size": block_size,
        "actual_seq_lengths": list(itertools.accumulate(query_lens)),
        "actual_seq_lengths_kv": list(seq_lens),
        "num_key_value_heads": num_kv_heads,
        "num_heads": query.shape[1],
        "scale": scale,
        "sparse_mode": _CAUSAL_FROM_THE_RIGHT,
    }


@functools.cache
def _mask(device: torch.device) -> torch.Tensor:
    """1 where a key is hidden: one for all shapes, made once per device."""
    hidden = torch.ones(MASK_TOKENS, MASK_TOKENS, dtype=torch.int8, device=device)
    return hidden.triu(1)


def _check(
    query: torch.Tensor,
    key_blocks: torch.Tensor,
    value_blocks: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: Sequence[int],
    query_lens: Sequence[int],
) -> None:
    """Raises ValueError for the first thing that does not fit; the operator itself reads on."""
    _, block_size, num_kv_heads, head_size = key_blocks.shape
    most = block_table.shape[1] * block_size
    pairs = list(zip(query_lens, seq_lens, strict=False))
    counts = len(query_lens), len(seq_lens), block_table.shape[0]
    problems = (
        (key_blocks.shape != value_blocks.shape, "K and V have different shapes"),
        (block_size != KERNEL_BLOCK_TOKENS, f"block {block_size}, not {KERNEL_BLOCK_TOKENS}"),
        (not key_blocks.is_contiguous() or not value_blocks.is_contiguous(), "K or V has gaps"),
        (query.shape[2] != head_size, f"head size {query.shape[2]} over a cache of {head_size}"),
        (
            query.shape[1] % num_kv_heads != 0,
            f"{query.shape[1]} heads over {num_kv_heads} KV heads",
        ),
        (
            len(set(counts)) != 1,
            "{} query lengths, {} sequence lengths, {} rows of the block table".format(*counts),
        ),
        (
            any(not 1 <= new <= total <= most for new, total in pairs),
            f"lengths {pairs} outside 1 to {most}, or more new tokens than tokens",
        ),
        (sum(query_lens) > query.shape[0], f"{sum(query_lens)} tokens in {query.shape[0]} rows"),
        (block_table.dtype != torch.int32, f"block table is {block_table.dtype}, not int32"),
    )
    for wrong, text in problems:
        if wrong:
            message = f"{OPERATOR}: {text}"
            raise ValueError(message)


@functools.cache
def _operator() -> Callable[..., Any]:
    """torch_npu's operator, after its own schema has been asked for every name that is passed."""
    import torch_npu

    names = {
        argument.name for argument in getattr(torch.ops.npu, OPERATOR).default._schema.arguments
    }
    missing = [name for name in passed_names() if name not in names]
    if missing:
        message = f"this torch_npu's {OPERATOR} takes no {', '.join(missing)}"
        raise ImportError(message)
    operator: Callable[..., Any] = getattr(torch_npu, OPERATOR)
    return operator


def passed_names() -> tuple[str, ...]:
    """Names of the arguments that :func:`fia_arguments` passes."""
    block = torch.empty(1, KERNEL_BLOCK_TOKENS, 1, 1, device="meta")
    table = torch.empty(1, 1, dtype=torch.int32, device="meta")
    query = torch.empty(1, 1, 1, device="meta")
    return tuple(fia_arguments(query, block, block, table, [1], 1.0, query_lens=[1]))


def schema() -> dict[str, list[str]]:
    """Argument names by operator, as torch_npu's wheel declares them; see the file's source."""
    data: dict[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    return {name: names.split() for name, names in data["operators"].items()}
