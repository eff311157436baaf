"""Profiles: what is packaged is good, what is not is said in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hwtune.domain.errors import InputError
from hwtune.io.profiles import load_profile, profile_names

GOOD = """
title = "Test"
device = "cuda"
engine = "vllm"
default_alignment_tokens = 16
required_alignment_tokens = 64
base_backend = "TRITON_ATTN"
verified_on_hardware = false

[sources]
default_alignment_tokens = "manual a"
required_alignment_tokens = "manual b"

[[kernels]]
name = "k"
implementation = "k.x"
source = "manual c"

[kernels.when]
min_query_len = 1
max_query_len = 1
"""


@pytest.mark.parametrize("name", profile_names())
def test_packaged_profiles_are_good(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert profile.required_alignment_tokens % 16 == 0
    assert all(kernel.source for kernel in profile.kernels)


def test_only_the_cpu_is_verified() -> None:
    assert [name for name in profile_names() if load_profile(name).verified_on_hardware] == ["cpu"]


def test_the_vendor_kernel_of_gfx936_takes_exactly_the_published_shape() -> None:
    when = next(k for k in load_profile("gfx936").kernels if k.name == "vendor_prefill").when
    assert (when.num_heads, when.num_kv_heads, when.head_sizes, when.gqa_ratios) == (
        24,
        4,
        (256,),
        (6,),
    )
    assert (when.min_query_len, when.max_query_len, when.block_size_multiple_of) == (2, 4096, 64)
    assert when.dtypes == ("bfloat16",)
    assert when.single_sequence


def test_an_alias_finds_its_profile() -> None:
    assert load_profile("hopper").name == "sm_90"


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean gfx936"):
        load_profile("gfx963")


def _profile(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_profile_by_path(tmp_path: Path) -> None:
    profile = load_profile(_profile(tmp_path, GOOD))
    assert (profile.name, profile.kernels[0].when.max_query_len) == ("mine", 1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('default_alignment_tokens = "manual a"', "", "'default_alignment_tokens' has no source"),
        ("[sources]", "memory_bytes = 5\n[sources]", "'memory_bytes' has no source"),
        ('device = "cuda"', 'device = "abacus"', "'device' must be one of"),
        ('device = "cuda"', "device = 3", "key 'device' has the wrong type: 3"),
        ('engine = "vllm"', 'engine = "sglang"', "key 'engine' has the wrong type"),
        ('title = "Test"', "", "key 'title' is missing"),
        ("default_alignment_tokens = 16", "default_alignment_tokens = true", "wrong type: True"),
        ("required_alignment_tokens = 64", "required_alignment_tokens = 0", "must be positive"),
        ('title = "Test"', 'titel = "Test"', "unknown key 'titel'; did you mean 'title'"),
        ("max_query_len = 1", "max_query_len = 0", "not above max_query_len"),
        ("max_query_len = 1", "max_length = 1", "unknown key 'kernels[0].when.max_length'"),
        ('source = "manual c"', 'source = ""', "kernel 'k' has no source"),
        ("[kernels.when]", "[kernels.wenn]", "unknown key 'kernels[0].wenn'; did you mean 'when'"),
        ('source = "manual c"', 'source = "?"', "kernel 'k' has no source"),
        (
            'default_alignment_tokens = "manual a"',
            'default_alignment_tokens = "x"',
            "has no source",
        ),
        ("required_alignment_tokens = 64", "required_alignment_tokens = 4294967296", "(2**31)"),
        ("[[kernels]]", "[kernels]", "'kernels' must be an array of tables"),
        ("title =", "title", "not TOML"),
    ],
)
def test_bad_profiles(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in GOOD
    with pytest.raises(InputError) as caught:
        load_profile(_profile(tmp_path, GOOD.replace(old, new)))
    assert message in str(caught.value)
    assert "mine.toml" in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_profile(str(tmp_path / "none.toml"))
