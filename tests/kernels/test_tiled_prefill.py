"""tiled_prefill in Triton: interpreted here, compiled where there is a GPU."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.kernels.paged import check, make_call


def prefill(call: dict[str, Any], *, rows: int = 64, tile: int = 16, **extras: Any) -> Any:
    import torch
    from hwtune_kernels.prefill.spec import Tuning
    from hwtune_kernels.prefill.triton import tiled_prefill

    output = torch.full_like(call["query"], math.nan)
    longest = int(call["query_start"].diff().max())
    tuning = Tuning(rows=rows, tile_tokens=tile, num_warps=4)
    tiled_prefill(**call, output=output, max_query_len=longest, tuning=tuning, **extras)
    return output


def check_prefill(
    device: str, call: dict[str, Any], *, rows: int = 64, tile: int = 16, **extras: Any
) -> None:
    output = prefill(call, rows=rows, tile=tile, **extras)
    check(call, output, interpreted=device == "cpu", **extras)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("query", [2, 9, 10, 11, 31, 47])
def test_queries_around_every_block_and_tile(triton_device: str, dtype: str, query: int) -> None:
    """At 64 rows and 6 heads a block holds 10 tokens; with and without a context before it."""
    lengths = [query, query + 33]
    call = make_call(lengths, new=[query, query], dtype=dtype, device=triton_device)
    check_prefill(triton_device, call)


@pytest.mark.parametrize("heads", [(2, 2, 64), (4, 1, 128), (12, 2, 256), (8, 1, 64)], ids=str)
def test_head_shapes(triton_device: str, heads: tuple[int, int, int]) -> None:
    call = make_call([70], new=[40], heads=heads, dtype="bfloat16", device=triton_device)
    check_prefill(triton_device, call, rows=128)


@pytest.mark.parametrize("page", [16, 784, 832, 1024])
def test_pages(triton_device: str, page: int) -> None:
    call = make_call([page + 7], new=[12], page=page, device=triton_device)
    check_prefill(triton_device, call, rows=128, tile=64)


@pytest.mark.parametrize("layout", ["interleaved", "head-major", "paired", "split"])
def test_cache_layouts(triton_device: str, layout: str) -> None:
    call = make_call([50], new=[30], heads=(4, 2, 64), layout=layout, device=triton_device)
    check_prefill(triton_device, call)


def test_ragged_batches_with_padding_and_decodes(triton_device: str) -> None:
    call = make_call([40, 66, 1, 35, 90], new=[40, 4, 1, 0, 21], device=triton_device)
    check_prefill(triton_device, call)


@pytest.mark.parametrize(
    "extras",
    [
        {"window": 1},
        {"window": 20},
        {"soft_cap": 2.0},
        {"sinks": True},
        {"window": 17, "soft_cap": 2.0, "sinks": True},
    ],
    ids=str,
)
def test_window_cap_and_sinks(triton_device: str, extras: dict[str, Any]) -> None:
    import torch

    call = make_call([25, 70], new=[25, 13], device=triton_device)
    if "sinks" in extras:
        sinks = torch.linspace(-3, 3, call["query"].shape[1], device=triton_device)
        extras = extras | {"sinks": sinks}
    check_prefill(triton_device, call, **extras)


def test_fp8_caches(triton_device: str) -> None:
    call = make_call([70], new=[20], cache_dtype="float8_e4m3fn", device=triton_device)
    check_prefill(triton_device, call)


def test_sharp_softmaxes(triton_device: str) -> None:
    call = make_call([90], new=[33], dtype="bfloat16", sharpness=12.0, device=triton_device)
    check_prefill(triton_device, call)


def test_a_mask_that_is_off_by_one_is_noticed(triton_device: str) -> None:
    """The yardstick can fail: a length too long by one lets every token see the next."""
    call = make_call([41], new=[21], device=triton_device)
    longer = make_call([42], new=[22], device=triton_device)
    call["key_pages"], call["value_pages"] = longer["key_pages"], longer["value_pages"]
    call["block_table"] = longer["block_table"]
    wrong = call | {"seq_lens": call["seq_lens"] + 1}
    output = prefill(wrong)
    with pytest.raises(AssertionError):
        check(call, output, interpreted=triton_device == "cpu")


def test_refuses_what_it_does_not_compute(triton_device: str) -> None:
    with pytest.raises(ValueError, match="head size 96"):
        prefill(make_call([20], new=[2], heads=(6, 1, 96)))
    with pytest.raises(ValueError, match="page 24 is not a multiple of 16"):
        prefill(make_call([20], new=[2], page=24))
    with pytest.raises(ValueError, match="do not fit into 16 rows"):
        prefill(make_call([20], new=[2], heads=(32, 1, 64)), rows=16)
