"""The CPU kernels against the float64 reference, with flash attention's rounding as the yardstick."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch

Attention = Callable[..., None]

PREFILL_CASES = [
    # heads, KV heads, head size, page, query tokens, context
    (6, 1, 64, 64, 1, 1),
    (6, 1, 64, 64, 2, 65),
    (6, 1, 64, 832, 63, 63),
    (6, 1, 64, 832, 64, 832),
    (6, 1, 64, 832, 65, 833),
    (4, 4, 64, 96, 130, 191),
    (8, 2, 128, 64, 127, 128),
    (12, 2, 256, 128, 66, 300),
    # more keys than one tile, and one key more than two
    (6, 1, 64, 832, 3, 2600),
    (6, 1, 64, 64, 64, 2049),
    (12, 2, 256, 128, 66, 1025),
]
DECODE_CASES = [
    (6, 1, 64, 64, 1, 1),
    (6, 1, 64, 64, 1, 63),
    (6, 1, 64, 64, 1, 64),
    (6, 1, 64, 64, 1, 65),
    (6, 1, 64, 832, 1, 1700),
    (4, 4, 64, 96, 1, 97),
    (8, 2, 128, 784, 1, 785),
    (12, 2, 256, 128, 1, 511),
]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("case", PREFILL_CASES, ids=str)
def test_prefill_is_as_right_as_flash_attention(case: tuple[int, ...], dtype: str) -> None:
    from hwtune_kernels.prefill.cpu import prefill_attention

    check_against_reference(prefill_attention, case, dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("case", DECODE_CASES, ids=str)
def test_decode_is_as_right_as_flash_attention(case: tuple[int, ...], dtype: str) -> None:
    from hwtune_kernels.page_decode.cpu import page_decode_attention

    check_against_reference(page_decode_attention, case, dtype)


def check_against_reference(
    kernel: Attention, case: tuple[int, ...], dtype: str, sharpness: float = 1.0
) -> None:
    """:func:`check_call` on random numbers of that shape."""
    import torch

    check_call(kernel, make_call(case, getattr(torch, dtype), sharpness))


def check_call(kernel: Attention, call: dict[str, Any]) -> None:
    """At most twice as wrong as flash attention's rounding, and every output written."""
    import torch
    from hwtune_kernels.reference import paged_attention

    truth = torch.full_like(call["query"], math.nan, dtype=torch.float64)
    paged_attention(**{**call, "output": truth})
    output = torch.full_like(call["query"], math.nan)
    kernel(**call, output=output)
    ours = (output.double() - truth).pow(2).mean().sqrt().item()
    yardstick = (flash_rounding(call).double() - truth).pow(2).mean().sqrt().item()
    floor = float(torch.finfo(torch.float32).eps) * truth.abs().max().item()
    assert ours <= 2 * yardstick + 8 * floor


def make_call(case: tuple[int, ...], dtype: torch.dtype, sharpness: float) -> dict[str, Any]:
    """A sequence scattered over shuffled pages; everything it does not own is NaN.

    ``sharpness`` is the standard deviation of the scores: at 1 the softmax is nearly flat, at 16 it
    picks a few keys, and rounded scores show.
    """
    import torch

    num_heads, num_kv_heads, head_size, block_size, num_tokens, context_len = case
    generator = torch.Generator().manual_seed(sum(case))
    num_pages = -(-context_len // block_size)
    num_blocks = num_pages + 3
    table = torch.randperm(num_blocks, generator=generator)[:num_pages].int()
    keys = torch.full((num_blocks, num_kv_heads, head_size, block_size), math.nan, dtype=dtype)
    values = torch.full((num_blocks, num_kv_heads, block_size, head_size), math.nan, dtype=dtype)
    for logical, physical in enumerate(table.tolist()):
        used = min(block_size, context_len - logical * block_size)
        shape = (num_kv_heads, head_size, used)
        keys[physical, :, :, :used] = torch.randn(shape, generator=generator).to(dtype)
        values[physical, :, :used] = torch.randn(shape, generator=generator).mT.to(dtype)
    query = torch.randn((num_tokens, num_heads, head_size), generator=generator)
    query = (query * sharpness).to(dtype)
    return {
        "query": query,
        "key_pages": keys,
        "value_pages": values,
        "block_table": table,
        "context_len": context_len,
        "scale": head_size**-0.5,
    }


def flash_rounding(call: dict[str, Any]) -> torch.Tensor:
    """Scores and softmax in FP32, weights rounded to the dtype of V: what flash attention rounds."""
    import torch

    pages, context = call["block_table"].long(), call["context_len"]
    keys = call["key_pages"][pages].permute(1, 0, 3, 2).flatten(1, 2)[:, :context]
    values = call["value_pages"][pages].transpose(0, 1).flatten(1, 2)[:, :context]
    query = call["query"].transpose(0, 1)
    group = query.shape[0] // keys.shape[0]
    keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
    scores = query.float() @ keys.float().mT * call["scale"]
    visible = torch.ones(query.shape[1], context, dtype=torch.bool).tril(context - query.shape[1])
    scores.masked_fill_(~visible, -math.inf)
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    rounded = weights.to(values.dtype).float()
    result = rounded @ values.float() / weights.sum(-1, keepdim=True)
    return result.to(values.dtype).transpose(0, 1)


@pytest.mark.parametrize("sharpness", [4.0, 16.0])
def test_sharp_softmaxes_keep_their_precision(sharpness: float) -> None:
    from hwtune_kernels.page_decode.cpu import page_decode_attention
    from hwtune_kernels.prefill.cpu import prefill_attention

    check_against_reference(prefill_attention, (4, 2, 64, 64, 64, 512), "bfloat16", sharpness)
    check_against_reference(prefill_attention, (4, 2, 64, 64, 70, 4096), "bfloat16", sharpness)
    check_against_reference(page_decode_attention, (4, 2, 64, 64, 1, 512), "bfloat16", sharpness)


@pytest.mark.parametrize("oldest_are_highest", [True, False])
def test_scores_that_rise_or_fall_over_the_context_keep_their_precision(
    oldest_are_highest: bool,
) -> None:
    """The prefill subtracts the newest tile's maxima until an older tile has a higher score."""
    import torch
    from hwtune_kernels.prefill.cpu import prefill_attention

    call = make_call((4, 2, 64, 64, 70, 3000), torch.bfloat16, 4.0)
    shrink = torch.linspace(1.0, 0.05, len(call["block_table"]))
    pages = call["block_table"].long()
    by_age = shrink if oldest_are_highest else shrink.flip(0)
    call["key_pages"][pages] *= by_age[:, None, None, None].bfloat16()
    check_call(prefill_attention, call)


def test_the_yardstick_catches_a_wrong_kernel() -> None:
    from hwtune_kernels.prefill.cpu import prefill_attention

    def pages_in_the_wrong_order(**call: Any) -> None:
        table = call["block_table"].flip(0)
        prefill_attention(**{**call, "block_table": table})

    with pytest.raises(AssertionError):
        check_against_reference(pages_in_the_wrong_order, (6, 1, 64, 64, 2, 128), "float32")


def test_every_registered_implementation_loads() -> None:
    from hwtune_kernels import registry

    triton = importlib.util.find_spec("triton") is not None
    for name in registry.IMPLEMENTATIONS:
        if triton or not name.endswith(".triton"):
            assert callable(registry.load(name))
