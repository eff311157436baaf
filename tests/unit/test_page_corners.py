"""Corners of the page rule that vLLM 0.32 was run for: what each of them gives, or refuses."""

from __future__ import annotations

from typing import Any

import pytest

from hwtune.domain.deployment import Deployment
from hwtune.domain.errors import InfeasibleError, InputError
from hwtune.domain.page import EngineRefusalError, PageDerivation, derive_page
from hwtune.domain.page_rules_backends import backend_sizes
from hwtune.domain.page_rules_versions import NEWEST
from hwtune.families import read_shape
from tests.unit.test_page_rules import JAMBA, KIMI, NEMOTRON, QWEN_27B, model

GRANITE_ATTENTION_ONLY: dict[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "dtype": "bfloat16",
    "hidden_size": 2560,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "num_hidden_layers": 4,
    "layer_types": ["attention"] * 4,
    "mamba_expand": 2,
    "mamba_n_heads": 64,
    "mamba_d_head": 80,
    "mamba_n_groups": 1,
    "mamba_d_state": 128,
    "mamba_d_conv": 4,
    "max_position_embeddings": 131072,
}


def page(config: dict[str, Any], *backends: str, **knobs: Any) -> PageDerivation:
    knobs.setdefault("version", "0.32.0")
    sizes = tuple(backend_sizes(name, NEWEST) for name in backends)
    return derive_page(model(config), Deployment(**knobs), backends=sizes)


def test_skip_layers_count_k_and_v_for_mla_as_well() -> None:
    quantised = {"kv_cache_dtype": "fp8", "kv_cache_dtype_skip_layers": ("3",)}
    found = page(KIMI, "TRITON_MLA", **quantised)
    assert found.attention_bytes_per_token == 576
    assert found.skip_page_padded_bytes == found.block_size_tokens * 2 * 576
    assert found.mamba_page_padded_bytes == found.skip_page_padded_bytes


@pytest.mark.parametrize(("first", "bytes_per_token"), [("TURBOQUANT", 920), ("FLASH_ATTN", 2048)])
def test_beside_skip_layers_the_first_backends_layout_counts(
    first: str, bytes_per_token: int
) -> None:
    """Keys of 3 bits and values of 4 take 98 + 132 bytes a head where packed, elsewhere 2 x 256."""
    knobs = {"kv_cache_dtype": "turboquant_k3v4_nc", "kv_cache_dtype_skip_layers": ("0",)}
    text = QWEN_27B["text_config"] | {"layer_types": None}
    found = page(QWEN_27B | {"text_config": text}, first, **knobs)
    assert found.skip_page_padded_bytes == found.block_size_tokens * bytes_per_token


def test_a_backend_that_does_not_pack_gives_a_byte_per_element() -> None:
    int8 = {"kv_cache_dtype": "int8_per_token_head"}
    assert page(QWEN_27B, "TRITON_ATTN", **int8).attention_bytes_per_token == 4 * (2 * 256 + 8)
    assert page(QWEN_27B, "FLASH_ATTN", **int8).attention_bytes_per_token == 2 * 4 * 256
    before = page(QWEN_27B, "FLASH_ATTN", **int8, version="0.27.0")
    assert before.attention_bytes_per_token == 4 * (2 * 256 + 8)


def test_without_attention_the_users_mamba_block_stays() -> None:
    found = page(QWEN_27B, enable_prefix_caching=True, mamba_block_size=512)
    assert (found.block_size_tokens, found.mamba_block_size) == (16, 512)


def test_a_state_that_nobody_asks_for_cannot_refuse_a_model() -> None:
    found = page(GRANITE_ATTENTION_ONLY, "TRITON_ATTN", tensor_parallel_size=5)
    assert (found.block_size_tokens, found.unused_state_bytes) == (16, None)


@pytest.mark.parametrize(
    ("config", "knobs", "text"),
    [
        (KIMI, {"kv_cache_dtype": "nvfp4"}, "nvfp4 KV cache is not supported with MLA"),
        (KIMI, {"kv_cache_dtype": "turboquant_k8v4"}, "identifiable full-attention layers"),
        (KIMI, {"platform": "cpu"}, "--mamba-block-size can only be set with"),
        (JAMBA, {"use_replayssm": True}, "not supported for architecture 'JambaForCausalLM'"),
        (
            NEMOTRON,
            {"use_replayssm": True, "num_speculative_tokens": 1},
            "requires --mamba-cache-mode none",
        ),
        (
            NEMOTRON,
            {
                "use_replayssm": True,
                "num_speculative_tokens": 16,
                "enable_prefix_caching": False,
            },
            r"replayssm-buffer-len >= 1 \+ num_speculative_tokens \(17\); got 16",
        ),
        (
            QWEN_27B | {"quantization_config": {"quant_method": "fp8"}},
            {"dtype": "float32"},
            r"float32 is not supported for quantization method fp8. Supported dtypes: \[torch.bf",
        ),
    ],
)
def test_what_vllm_refuses(config: dict[str, Any], knobs: dict[str, Any], text: str) -> None:
    with pytest.raises(EngineRefusalError, match=text):
        page(config, "TRITON_MLA" if config is KIMI else "TRITON_ATTN", **knobs)


def test_kda_takes_replayssm_only_without_drafts() -> None:
    plain = page(KIMI, "TRITON_MLA").state_bytes
    assert page(KIMI, "TRITON_MLA", use_replayssm=True).state_bytes == plain
    with pytest.raises(InfeasibleError, match="RecoverSSM"):
        page(KIMI, "TRITON_MLA", use_replayssm=True, num_speculative_tokens=2)


def test_kimi_k3_in_mxfp4_runs_in_bfloat16_only() -> None:
    packed = {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}
    text = KIMI | {"quantization_config": packed}
    config = {"architectures": ["KimiK3ForConditionalGeneration"], "text_config": text}
    assert (
        page(config, "TRITON_MLA").block_size_tokens == page(KIMI, "TRITON_MLA").block_size_tokens
    )
    with pytest.raises(EngineRefusalError, match="quantization method mxfp4"):
        page(config, "TRITON_MLA", dtype="float16")


@pytest.mark.parametrize("dtype", ["float32", "half", "float"])
def test_what_no_kv_cache_is_kept_in(dtype: str) -> None:
    with pytest.raises(InputError, match="--kv-cache-dtype"):
        page(QWEN_27B, "TRITON_ATTN", kv_cache_dtype=dtype)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (QWEN_27B["text_config"] | {"architectures": ["Qwen3_5ForCausalLM"]}, "head_dim"),
        (
            QWEN_27B["text_config"] | {"architectures": ["Qwen3NextForCausalLM"]},
            "num_key_value_heads",
        ),
        (JAMBA, "num_key_value_heads"),
        (NEMOTRON, "num_key_value_heads"),
        (KIMI, "kv_lora_rank"),
    ],
)
def test_keys_that_a_class_would_fill_in_are_missed_by_name(
    config: dict[str, Any], key: str
) -> None:
    """vLLM would take the configuration class's own number, not one that the other keys give."""
    without = {name: value for name, value in config.items() if name != key}
    with pytest.raises(InputError, match=f"key '{key}' is missing"):
        read_shape(without, "x")


def test_nemotrons_head_size_is_its_head_dim_or_its_classs() -> None:
    config = {key: value for key, value in NEMOTRON.items() if key != "head_dim"}
    assert read_shape(config | {"attention_head_dim": 64}, "x").attention.head_size == 128
    assert read_shape(config | {"head_dim": 64}, "x").attention.head_size == 64


def test_every_kind_of_attention_is_counted() -> None:
    layers = ["linear_attention", "deepseek_sparse_attention", "linear_attention", "full_attention"]
    shape = read_shape(KIMI | {"layer_types": layers}, "x")
    assert shape.recurrent is not None
    assert (shape.attention.num_layers, shape.recurrent.num_layers) == (2, 2)
    sparse = read_shape(KIMI | {"layer_types": layers, "index_topk": 2048}, "x")
    assert sparse.attention.num_layers is None
