"""page_decode in Triton: interpreted here, compiled where there is a GPU."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.kernels.paged import check, make_call


def decode(
    device: str, call: dict[str, Any], *, segments: int = 4, tile: int = 16, **extras: Any
) -> Any:
    import torch
    from hwtune_kernels.page_decode.spec import Tuning
    from hwtune_kernels.page_decode.triton import page_decode

    output = torch.full_like(call["query"], math.nan)
    longest = int(call["query_start"].diff().max())
    tuning = Tuning(tile_tokens=tile, programs=10**6, max_segments=segments)
    page_decode(**call, output=output, max_query_len=longest, tuning=tuning, **extras)
    return output


def check_decode(
    device: str, call: dict[str, Any], *, segments: int = 4, tile: int = 16, **extras: Any
) -> None:
    output = decode(device, call, segments=segments, tile=tile, **extras)
    check(call, output, interpreted=device == "cpu", **extras)


@pytest.mark.parametrize(
    ("dtype", "segments"), [("float16", 1), ("bfloat16", 2), ("float16", 8)], ids=str
)
def test_lengths_around_every_boundary(triton_device: str, dtype: str, segments: int) -> None:
    lengths = [1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 97]
    call = make_call(lengths, page=32, dtype=dtype, device=triton_device)
    check_decode(triton_device, call, segments=segments)


@pytest.mark.parametrize("heads", [(2, 2, 64), (4, 1, 128), (12, 2, 256), (8, 1, 64)], ids=str)
def test_head_shapes(triton_device: str, heads: tuple[int, int, int]) -> None:
    call = make_call([33, 70], heads=heads, dtype="bfloat16", device=triton_device)
    check_decode(triton_device, call)


@pytest.mark.parametrize("page", [16, 64, 784, 832, 1024])
def test_pages(triton_device: str, page: int) -> None:
    call = make_call([page + 1, 5], page=page, device=triton_device)
    check_decode(triton_device, call, tile=64, segments=8)


@pytest.mark.parametrize("layout", ["interleaved", "head-major", "paired", "split"])
def test_cache_layouts(triton_device: str, layout: str) -> None:
    call = make_call([70], heads=(4, 2, 64), layout=layout, device=triton_device)
    check_decode(triton_device, call)


@pytest.mark.parametrize("tile", [16, 32])
def test_drafts_and_padding(triton_device: str, tile: int) -> None:
    call = make_call([16, 66, 1, 35, 90], new=[2, 4, 1, 0, 3], device=triton_device)
    check_decode(triton_device, call, tile=tile)


@pytest.mark.parametrize(
    "extras",
    [
        {"window": 1},
        {"window": 40},
        {"soft_cap": 2.0},
        {"sinks": True},
        {"window": 17, "soft_cap": 2.0, "sinks": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("segments", [1, 4])
def test_window_cap_and_sinks(triton_device: str, extras: dict[str, Any], segments: int) -> None:
    import torch

    call = make_call([5, 64, 100], new=[1, 3, 2], device=triton_device)
    if "sinks" in extras:
        sinks = torch.linspace(-3, 3, call["query"].shape[1], device=triton_device)
        extras = extras | {"sinks": sinks}
    check_decode(triton_device, call, segments=segments, **extras)


@pytest.mark.parametrize("cache", ["float8_e4m3fn", "float8_e5m2"])
def test_fp8_caches(triton_device: str, cache: str) -> None:
    call = make_call([33, 80], dtype="float16", cache_dtype=cache, device=triton_device)
    check_decode(triton_device, call)


def test_sharp_softmaxes(triton_device: str) -> None:
    call = make_call([90, 33], dtype="bfloat16", sharpness=12.0, device=triton_device)
    check_decode(triton_device, call)


def test_a_cut_off_segment_far_below_the_maximum_is_not_lost(triton_device: str) -> None:
    """Scores near -1000 with rows that see nothing in a segment: 0/0 if those count as 0."""
    call = make_call([64, 64], new=[2, 2], heads=(1, 1, 64), device=triton_device)
    call["query"] = call["query"].abs() * 30
    call["key_pages"].copy_(-call["key_pages"].abs() * 30)
    check_decode(triton_device, call, segments=4, window=20)


def test_an_empty_sequence_gives_zeros(triton_device: str) -> None:
    call = make_call([40, 40], device=triton_device)
    call["seq_lens"][0] = 0
    output = decode(triton_device, call)
    assert (output[0] == 0).all()
    assert output[1].isfinite().all()


def test_wrong_pages_are_noticed(triton_device: str) -> None:
    """The yardstick can fail."""
    call = make_call([90], device=triton_device)
    flipped = call | {"block_table": call["block_table"][:, [2, 1, 0, 3]]}
    output = decode(triton_device, flipped)
    with pytest.raises(AssertionError):
        check(call, output, interpreted=triton_device == "cpu")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"head_size": 96}, "head size 96"),
        ({"page": 24}, "page 24 is not a multiple of 16"),
        ({"new": 11}, "11 query tokens of 6/1 heads: over 64 rows"),
    ],
    ids=str,
)
def test_refuses_what_it_does_not_compute(
    triton_device: str, change: dict[str, int], reason: str
) -> None:
    heads = (6, 1, change.get("head_size", 64))
    new = [change.get("new", 1)]
    call = make_call([20], new=new, heads=heads, page=change.get("page", 32))
    with pytest.raises(ValueError, match=reason):
        decode(triton_device, call)


def test_refuses_tensors_that_do_not_fit(triton_device: str) -> None:
    import torch

    call = make_call([20])
    with pytest.raises(ValueError, match="FP8 cache needs both scales"):
        decode(triton_device, call | {"query": call["query"].float()})
    with pytest.raises(ValueError, match="K has a last stride of 64"):
        columns = torch.empty(4, 32, 64, 64, dtype=torch.float16).transpose(2, 3)[:, :, :1]
        decode(triton_device, call | {"key_pages": columns})
    with pytest.raises(ValueError, match="scale must be positive"):
        decode(triton_device, call | {"scale": 0.0})


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    ("page", "lengths", "heads"),
    [
        (64, [1, 64, 65, 200], (6, 1, 64)),
        (784, [800], (4, 1, 64)),
        (832, [16, 833], (6, 1, 256)),
    ],
    ids=str,
)
def test_exact_has_the_bits_of_vllms_kernel(
    triton_device: str, dtype: str, page: int, lengths: list[int], heads: tuple[int, int, int]
) -> None:
    import torch
    from hwtune_kernels import generic

    call = make_call(lengths, heads=heads, page=page, dtype=dtype, device=triton_device)
    theirs = torch.full_like(call["query"], math.nan)
    try:
        recorded = generic.launches(**call, output=theirs, max_query_len=1)
    except generic.GenericUnavailableError as error:
        pytest.skip(str(error))
    for launch in recorded:
        launch.run()
    ours = decode(triton_device, call, exact=True)
    assert torch.equal(ours, theirs)
    fast = decode(triton_device, call)
    assert not torch.equal(fast, theirs), "equal bits would not tell the two apart"
