"""The call of Ascend's attention operator: what it is told, and that its names exist.

``fia`` below is no operator of Huawei's: it computes, in float64, what the arguments say (layout TND,
a paged cache, sparse_mode 3), so that wrong arguments give wrong numbers. The operator itself has not
run: this needs an NPU.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hwtune_kernels.prefill import npu
from hwtune_kernels.reference import batched_paged_attention

HEADS, KV_HEADS, HEAD_SIZE, BLOCK = 6, 2, 16, 128


def fia(**told: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention by the arguments alone."""
    assert (told["input_layout"], told["sparse_mode"]) == ("TND", 3)
    query, group = told["query"], told["num_heads"] // told["num_key_value_heads"]
    size = told["key"].shape[-1] // told["num_key_value_heads"]
    blocks = (-1, told["block_size"], told["num_key_value_heads"], size)
    result = torch.zeros_like(query)
    start = 0
    for row, (stop, total) in enumerate(
        zip(told["actual_seq_lengths"], told["actual_seq_lengths_kv"], strict=True)
    ):
        keys, values = (
            told[name].view(blocks)[told["block_table"][row].long()].flatten(0, 1)[:total].double()
            for name in ("key", "value")
        )
        scores = torch.einsum(
            "qhd,khd->hqk", query[start:stop].double(), keys.repeat_interleave(group, 1)
        )
        hidden = torch.ones(stop - start, total).triu(total - (stop - start) + 1).bool()
        weights = (scores * told["scale"]).masked_fill(hidden, float("-inf")).softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", weights, values.repeat_interleave(group, 1))
        result[start:stop] = mixed.to(query.dtype)
        start = stop
    return result, torch.empty(0)


def case(query_lens: list[int], seq_lens: list[int], spare_rows: int = 0) -> dict[str, Any]:
    torch.manual_seed(0)
    pages = max(-(-length // BLOCK) for length in seq_lens)
    table = torch.randperm(pages * len(seq_lens)).view(len(seq_lens), pages).to(torch.int32)
    cache = (pages * len(seq_lens), BLOCK, KV_HEADS, HEAD_SIZE)
    query = torch.randn(sum(query_lens) + spare_rows, HEADS, HEAD_SIZE)
    return {
        "query": query,
        "key_blocks": torch.randn(cache),
        "value_blocks": torch.randn(cache),
        "block_table": table,
        "seq_lens": seq_lens,
        "scale": 0.25,
        "query_lens": query_lens,
    }


@pytest.mark.parametrize(
    ("query_lens", "seq_lens"),
    [
        ([5], [5]),
        ([7], [300]),
        ([1, 1, 1], [1, 128, 129]),
        ([1, 40, 3], [200, 40, 256]),
    ],
)
def test_prefill_decode_and_mixed_steps_are_one_call(
    query_lens: list[int], seq_lens: list[int]
) -> None:
    given = case(query_lens, seq_lens, spare_rows=2)
    output = torch.full_like(given["query"], 9.0)
    npu.prefill_attention(**given, output=output, operator=fia)
    expected = torch.full_like(output, 9.0)
    starts = torch.tensor([0, *query_lens]).cumsum(0)
    batched_paged_attention(
        given["query"],
        given["key_blocks"],
        given["value_blocks"],
        given["block_table"],
        torch.tensor(seq_lens),
        0.25,
        expected,
        query_start=starts,
    )
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)


def test_the_mask_is_the_compressed_one_and_hides_the_future() -> None:
    mask = npu.fia_arguments(**case([1], [1]))["atten_mask"]
    assert (mask.shape, mask.dtype) == ((2048, 2048), torch.int8)
    assert mask[:3, :3].tolist() == [[0, 1, 1], [0, 0, 1], [0, 0, 0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seq_lens": [300, 1]}, "sequence lengths"),
        ({"seq_lens": [400]}, "outside 1 to 384"),
        ({"query_lens": [301]}, "more new tokens than tokens"),
        ({"query_lens": [0]}, "outside 1"),
        ({"block_table": torch.zeros(1, 3, dtype=torch.int64)}, "not int32"),
        ({"query": torch.zeros(7, 5, HEAD_SIZE)}, "5 heads over 2 KV heads"),
        ({"query": torch.zeros(7, HEADS, 8)}, "head size 8"),
        ({"query": torch.zeros(6, HEADS, HEAD_SIZE)}, "7 tokens in 6 rows"),
        ({"value_blocks": torch.zeros(3, BLOCK, 1, HEAD_SIZE)}, "different shapes"),
    ],
)
def test_what_the_operator_would_read_wrongly_is_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        npu.fia_arguments(**case([7], [300]) | change)


def test_a_page_is_not_a_block() -> None:
    """vLLM's page of 1536 tokens must be cut into blocks of 128 first."""
    cache = torch.zeros(1, 1536, KV_HEADS, HEAD_SIZE)
    with pytest.raises(ValueError, match="block 1536, not 128"):
        npu.fia_arguments(**case([7], [300]) | {"key_blocks": cache, "value_blocks": cache})


PASSED_BY_VLLM_ASCEND = {
    "npu_fused_infer_attention_score": (
        "query key value atten_mask block_table input_layout block_size actual_seq_lengths "
        "actual_seq_lengths_kv num_key_value_heads num_heads scale sparse_mode pre_tokens"
    ),
    "npu_fused_infer_attention_score.out": (
        "query key value atten_mask block_table input_layout block_size actual_seq_lengths "
        "actual_seq_lengths_kv num_key_value_heads num_heads scale sparse_mode workspace"
    ),
    "npu_fused_infer_attention_score_v2": (
        "num_query_heads num_key_value_heads input_layout pre_tokens next_tokens atten_mask "
        "sparse_mode softmax_scale block_table block_size actual_seq_qlen actual_seq_kvlen "
        "learnable_sink"
    ),
    "_npu_paged_attention": (
        "query key_cache value_cache num_kv_heads num_heads scale_value block_table "
        "context_lens out"
    ),
}
"""Keywords of the counted calls in vllm-ascend 0.18.0; ``check_npu_schemas.py --callers`` reads
them from the source."""


def test_every_name_that_is_passed_is_in_the_wheels_own_schema() -> None:
    known = npu.schema()
    assert set(npu.passed_names()) <= set(known[npu.OPERATOR])
    for operator, names in PASSED_BY_VLLM_ASCEND.items():
        assert set(names.split()) <= set(known[operator]), operator
    assert "num_query_heads" not in known[npu.OPERATOR]
    assert "num_heads" not in known["npu_fused_infer_attention_score_v2"]


def test_a_torch_npu_without_an_argument_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in of torch_npu whose operator lacks ``sparse_mode``."""
    names = [name for name in npu.schema()[npu.OPERATOR] if name != "sparse_mode"]
    arguments = [SimpleNamespace(name=name) for name in names]
    stand_in = ModuleType("torch_npu")
    operator = SimpleNamespace(
        default=SimpleNamespace(_schema=SimpleNamespace(arguments=arguments))
    )
    monkeypatch.setitem(sys.modules, "torch_npu", stand_in)
    monkeypatch.setattr(torch.ops, "npu", SimpleNamespace(**{npu.OPERATOR: operator}))
    npu._operator.cache_clear()
    with pytest.raises(ImportError, match="takes no sparse_mode"):
        npu.prefill_attention(**case([7], [300]), output=torch.zeros(7, HEADS, HEAD_SIZE))
    npu._operator.cache_clear()
