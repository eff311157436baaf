"""Launch constants: what a profile may say, and what a batch gets."""

from __future__ import annotations

import pytest
from hwtune_kernels import registry
from hwtune_kernels.page_decode import spec as decode
from hwtune_kernels.prefill import spec as prefill
from hwtune_kernels.tuning import tile_of

from hwtune.domain.kernel import tuning_for
from hwtune.io.profiles import load_profile, profile_names


@pytest.mark.parametrize(
    ("page", "largest", "tile"),
    [(784, 64, 16), (800, 64, 32), (832, 64, 64), (832, 32, 32), (1024, 64, 64), (16, 64, 16)],
)
def test_tiles_never_cross_a_page(page: int, largest: int, tile: int) -> None:
    assert tile_of(page, largest) == tile
    assert page % tile == 0


def test_a_page_without_a_tile_is_refused() -> None:
    with pytest.raises(ValueError, match="page 40 is not a multiple of 16"):
        tile_of(40, 64)


def test_segments_fill_the_device_and_depend_on_the_batch_alone() -> None:
    tuning = decode.Tuning(programs=264, max_segments=64)
    assert tuning.segments_of(1, 4) == 64
    assert tuning.segments_of(8, 4) == 8
    assert tuning.segments_of(64, 4) == 1
    assert tuning.segments_of(500, 8) == 1


@pytest.mark.parametrize(
    ("query", "group", "rows"), [(1, 1, 16), (1, 6, 16), (3, 6, 32), (8, 8, 64), (1, 32, 32)]
)
def test_rows_hold_all_tokens_and_heads(query: int, group: int, rows: int) -> None:
    assert decode.rows_of(query, group) == rows


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"tile": 32}, "no tuning is called 'tile'"),
        ({"tile_tokens": 48}, "must be a power of two, not 48"),
        ({"tile_tokens": 128}, "must be 16, 32 or 64"),
        ({"num_warps": 0}, "must be at least 1"),
    ],
    ids=str,
)
def test_bad_tunings_are_refused(values: dict[str, int], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        decode.tuning_of(values)


def test_switches_are_zero_or_one() -> None:
    assert prefill.tuning_of({"peel": 1, "rows": 64}) == prefill.Tuning(peel=1, rows=64)
    with pytest.raises(ValueError, match="must be 0 or 1, not 2"):
        prefill.tuning_of({"peel": 2})


def test_every_packaged_profile_names_tunings_that_its_kernels_know() -> None:
    tuned = 0
    for name in profile_names():
        for kernel in load_profile(name).kernels:
            if kernel.tuning:
                registry.read_tuning(kernel.implementation, kernel.tuning)
                tuned += 1
            for special in kernel.tuned:
                laid_over = {**kernel.tuning, **special.tuning}
                registry.read_tuning(kernel.implementation, laid_over)
    assert tuned > 0


@pytest.mark.parametrize(
    ("profile", "kernel", "size", "page", "warps"),
    [
        ("gfx942", "page_decode", 256, 832, 4),
        ("gfx942", "page_decode", 256, 784, 2),
        ("gfx936", "page_decode", 256, 784, 2),
        ("gfx942", "tiled_prefill", 64, 832, 4),
        ("gfx942", "tiled_prefill", 128, 832, 8),
        ("sm_90", "page_decode", 256, 784, 4),
    ],
)
def test_small_tiles_have_fewer_warps_on_amd(
    profile: str, kernel: str, size: int, page: int, warps: int
) -> None:
    spec = next(k for k in load_profile(profile).kernels if k.name == kernel)
    assert tuning_for(spec, size, page)["num_warps"] == warps


def test_a_kernel_without_tuning_refuses_one() -> None:
    with pytest.raises(ValueError, match=r"prefill.cpu has nothing to tune"):
        registry.read_tuning("prefill.cpu", {"rows": 1})
    assert registry.read_tuning("my.module:kernel", {"rows": 1}) == {"rows": 1}


def test_exact_refuses_what_it_cannot_promise() -> None:
    def refusal(query_len: int, has_extras: bool = False) -> str | None:
        return decode.refusal(
            query_len=query_len,
            num_heads=6,
            num_kv_heads=1,
            head_size=64,
            block_size=64,
            exact=True,
            has_extras=has_extras,
        )

    assert refusal(1) is None
    assert "one query token" in str(refusal(2))
    assert "no window" in str(refusal(1, has_extras=True))
