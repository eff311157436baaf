"""Dtypes that a checkpoint or the processor decides: which page they give, and when they do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hwtune.domain.deployment import Deployment
from hwtune.domain.model import CheckpointKv
from hwtune.domain.page import derive_page
from hwtune.families import read_shape
from hwtune.io.model_config import load_model
from tests.unit.test_page_rules import JAMBA, KIMI, NEMOTRON, QWEN_27B, model

FP8 = {"num_bits": 8, "type": "float", "dynamic": False}
PACKED = {"quant_method": "compressed-tensors", "kv_cache_scheme": FP8}
IN_FP8, IN_BF16 = 1568, 784
"""Pages of the 27B, whose attention bytes halve in fp8."""


def page(config: dict[str, Any], **knobs: Any) -> int:
    knobs.setdefault("version", "0.32.0")
    return derive_page(model(config), Deployment(**knobs), alignment_tokens=16).block_size_tokens


@pytest.mark.parametrize(
    ("quantisation", "expected"),
    [
        ({"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}}, IN_FP8),
        ({"quant_method": "modelopt_fp4", "kv_cache_scheme": FP8}, IN_FP8),
        ({"quant_method": "modelopt", "kv_cache_scheme": FP8 | {"dynamic": True}}, IN_BF16),
        ({"quant_method": "modelopt", "kv_cache_scheme": FP8 | {"num_bits": "8"}}, IN_BF16),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "INT8"}, IN_BF16),
        (PACKED, IN_FP8),
        (PACKED | {"quant_method": "compressed_tensors"}, IN_FP8),
        (PACKED | {"kv_cache_scheme": FP8 | {"type": "int"}}, IN_BF16),
        ({"quant_method": "fp8", "kv_cache_scheme": FP8}, IN_BF16),
        ("fp8", IN_BF16),
    ],
)
def test_what_a_checkpoint_says_of_its_kv_cache(quantisation: object, expected: int) -> None:
    assert page(QWEN_27B | {"quantization_config": quantisation}) == expected


def test_a_users_dtype_wins_over_the_checkpoints() -> None:
    assert page(QWEN_27B | {"quantization_config": PACKED}, kv_cache_dtype="bfloat16") == IN_BF16


def test_layers_declare_it_too_late_for_rules_that_run_before_they_are_built() -> None:
    """0.19 prints the page of the model's dtype, and the layers then store fp8."""
    config = QWEN_27B | {"quantization_config": PACKED}
    assert page(config, version="0.19.1") == IN_BF16
    assert page(config, version="0.20.0") == IN_FP8
    modelopt = {"quant_method": "modelopt", "kv_cache_scheme": FP8}
    assert page(QWEN_27B | {"quantization_config": modelopt}, version="0.19.1") == IN_FP8


def test_mla_layers_do_not_take_it_up() -> None:
    assert page(KIMI | {"quantization_config": PACKED}) == page(KIMI)


def test_it_may_stand_in_the_text_config_or_under_its_old_name() -> None:
    text = QWEN_27B["text_config"] | {"quantization_config": PACKED}
    assert page(QWEN_27B | {"text_config": text}) == IN_FP8
    assert page(QWEN_27B | {"compression_config": PACKED}) == IN_FP8


def _beside(folder: Path, config: dict[str, Any], quantisation: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "hf_quant_config.json").write_text(json.dumps(quantisation), encoding="utf-8")
    return folder


def test_modelopts_own_file_counts_where_the_config_says_nothing(tmp_path: Path) -> None:
    own = {
        "producer": {"name": "modelopt", "version": "0.29.0"},
        "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"},
    }
    found = load_model(str(_beside(tmp_path, NEMOTRON, own)))
    assert found.checkpoint_kv == CheckpointKv(dtype="fp8_e4m3")
    silent = NEMOTRON | {"quantization_config": {"quant_method": "modelopt"}}
    assert load_model(str(_beside(tmp_path, silent, own))).checkpoint_kv is None
    nobodys = {"quantization": own["quantization"]}
    assert load_model(str(_beside(tmp_path, NEMOTRON, nobodys))).checkpoint_kv is None


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("Qwen3_5ForCausalLM", 784),
        ("ColQwen3_5", 784),
        ("MiniCPMV4_6ForConditionalGeneration", 400),
        ("MiniCPMV4_7ForConditionalGeneration", 400),
        ("InternS2PreviewForConditionalGeneration", 400),
    ],
)
def test_only_classes_with_a_hook_honour_the_configs_state_dtype(
    architecture: str, expected: int
) -> None:
    assert page(QWEN_27B | {"architectures": [architecture]}) == expected


def test_the_hook_took_text_only_qwen_later_than_its_wrapper() -> None:
    text_only = QWEN_27B["text_config"] | {"architectures": ["Qwen3_5ForCausalLM"]}
    assert (page(text_only, version="0.23.0"), page(QWEN_27B, version="0.23.0")) == (400, 784)
    assert page(text_only, version="0.28.0") == 784


def test_room_for_draft_tokens_came_to_nemotron_first() -> None:
    def states(config: dict[str, Any], version: str) -> tuple[int | None, int | None]:
        shape, knobs = model(config), {"version": version, "mamba_ssm_cache_dtype": "float32"}
        return tuple(  # type: ignore[return-value]
            derive_page(shape, Deployment(num_speculative_tokens=n, **knobs)).state_bytes  # type: ignore[arg-type]
            for n in (0, 2)
        )

    granite = NEMOTRON | {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "mamba_expand": 2,
        "mamba_n_heads": 128,
        "mamba_d_head": 64,
        "mamba_n_groups": 8,
        "mamba_d_state": 128,
        "mamba_d_conv": 4,
    }
    nemotron = states(NEMOTRON, "0.28.0")
    assert nemotron[0] != nemotron[1]
    before, after = states(granite, "0.28.0"), states(granite, "0.32.0")
    assert before[0] == before[1] == after[0] != after[1]


def test_nemotrons_float32_state_is_that_of_the_classes_with_a_hook() -> None:
    omni = {"architectures": ["NemotronH_Nano_Omni_Reasoning_V3"], "text_config": NEMOTRON}
    wrapped = {"architectures": ["NemotronH_Nano_VL_V2"], "text_config": NEMOTRON}
    assert page(NEMOTRON) == page(wrapped) == 1040
    assert page(omni) == 528


def test_kda_state_is_float32_before_it_can_be_chosen() -> None:
    def with_bf16(version: str) -> int:
        return page(KIMI, version=version, mamba_ssm_cache_dtype="bfloat16")

    assert with_bf16("0.28.0") == page(KIMI, version="0.28.0") > with_bf16("0.30.0")


def test_a_cpu_with_avx512_bf16_keeps_the_state_in_float32() -> None:
    fast = {"platform": "cpu", "cpu_features": frozenset({"avx512_bf16"})}
    slow = {"platform": "cpu"}
    before = {"version": "0.27.0", "enable_prefix_caching": False}
    assert page(JAMBA, **slow) == page(JAMBA, **fast, **before) == 80
    assert page(JAMBA, **fast) == 144
    next_80b = QWEN_27B | {"architectures": ["Qwen3NextForCausalLM"]}
    assert page(next_80b, **slow) == 400 and page(next_80b, **fast) == 784
    assert page(next_80b, **fast, mamba_ssm_cache_dtype="bfloat16") == 400


def test_the_longest_context_is_the_smallest_a_key_declares() -> None:
    config = JAMBA | {"max_seq_len": 4096}
    assert read_shape(config, "x").max_model_len == 4096
    assert read_shape(config | {"model_max_length": 9000}, "x").max_model_len == 9000
