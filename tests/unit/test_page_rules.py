"""The page of Qwen3.5-27B and a tiny sibling, by hand: 3,207,168 B of state, 4,096 B a token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hwtune.domain.deployment import Deployment
from hwtune.domain.errors import InfeasibleError, InputError
from hwtune.domain.model import ModelShape
from hwtune.domain.page import EngineRefusalError, derive_page
from hwtune.domain.page_rules_backends import BackendSizes, backend_sizes
from hwtune.domain.page_rules_versions import NEWEST, parse_version, select_rule
from hwtune.families import read_shape

QWEN_27B: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "text_config": {
        "dtype": "bfloat16",
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144,
        "num_hidden_layers": 64,
        "full_attention_interval": 4,
    },
}
JAMBA: dict[str, Any] = {
    "architectures": ["JambaForCausalLM"],
    "dtype": "bfloat16",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "num_hidden_layers": 32,
    "attn_layer_period": 8,
    "attn_layer_offset": 4,
    "max_position_embeddings": 262144,
}
KIMI: dict[str, Any] = {
    "architectures": ["KimiLinearForCausalLM"],
    "dtype": "bfloat16",
    "hidden_size": 2304,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "linear_attn_config": {"num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4},
    "max_position_embeddings": 1048576,
}
NEMOTRON: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"],
    "dtype": "bfloat16",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "ssm_state_size": 128,
    "conv_kernel": 4,
    "chunk_size": 128,
    "max_position_embeddings": 8192,
}


def model(config: dict[str, Any] = QWEN_27B) -> ModelShape:
    return read_shape(config, "config.json")


@pytest.mark.parametrize(
    ("alignment", "block", "padding"),
    [
        (16, 784, 0.13),
        (32, 800, 2.17),
        (48, 816, 4.21),
        (64, 832, 6.26),
        (128, 896, 14.43),
        (256, 1024, 30.78),
        (512, 1024, 30.78),
        (1024, 1024, 30.78),
    ],
)
def test_27b_by_alignment(alignment: int, block: int, padding: float) -> None:
    page = derive_page(model(), Deployment(), alignment_tokens=alignment)
    assert page.state_bytes == 3_207_168
    assert page.attention_bytes_per_token == 4096
    assert page.block_size_tokens == block
    assert page.padding_pct == pytest.approx(padding, abs=0.005)


@pytest.mark.parametrize(
    ("change", "block"),
    [
        ({"tensor_parallel_size": 2}, 784),
        ({"tensor_parallel_size": 8}, 400),
        ({"kv_cache_dtype": "fp8"}, 1568),
        ({"num_speculative_tokens": 1}, 800),
        ({"num_speculative_tokens": 7}, 832),
        ({"mamba_ssm_cache_dtype": "bfloat16"}, 400),
        ({"block_size": 100}, 800),
        ({"block_size": 900}, 912),
        ({"block_size": 4096}, 4096),
        ({"enable_prefix_caching": False}, 784),
        ({"pipeline_parallel_size": 4}, 784),
        ({"platform": "xpu"}, 832),
        ({"version": "0.10.0"}, 400),
        ({"version": "0.17.1", "blackwell_sm10x": True}, 800),
        ({"version": "0.31.0", "block_size": 900}, 900),
        ({"version": "0.18.1+das.dtk2604", "block_size": 256}, 784),
        ({"version": "0.33.0", "prefill_checkpoint_tokens": 64}, 832),
        ({"version": "0.32.0", "prefill_checkpoint_tokens": 64}, 784),
        (
            {
                "version": "0.33.0",
                "prefill_checkpoint_tokens": 64,
                "enable_prefix_caching": False,
            },
            784,
        ),
    ],
)
def test_what_moves_the_page(change: dict[str, Any], block: int) -> None:
    page = derive_page(
        model(), Deployment(**change), backends=(backend_sizes("TRITON_ATTN", NEWEST),)
    )
    assert page.block_size_tokens == block


def test_block_size_flag_is_a_granularity_not_the_page() -> None:
    deployment = Deployment(block_size=816, num_speculative_tokens=7, version="0.28.0")
    page = derive_page(model(), deployment, alignment_tokens=16)
    assert page.block_size_tokens == 1632
    assert page.padding_pct == pytest.approx(99.51, abs=0.005)


def test_an_exact_page_has_no_padding() -> None:
    config = QWEN_27B["text_config"] | {
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "linear_num_value_heads": 32,
    }
    page = derive_page(
        model(QWEN_27B | {"text_config": config}),
        Deployment(kv_cache_dtype="fp8"),
        alignment_tokens=16,
    )
    assert (page.block_size_tokens, page.padding_pct, page.padding_bytes) == (2096, None, 0)
    assert page.mamba_page_padded_bytes is None


def test_without_the_ssm_dtype_key_the_state_follows_the_conv_state() -> None:
    text = {
        key: value for key, value in QWEN_27B["text_config"].items() if key != "mamba_ssm_dtype"
    }
    page = derive_page(model(QWEN_27B | {"text_config": text}), Deployment(), alignment_tokens=16)
    assert (page.state_bytes, page.block_size_tokens) == (1_634_304, 400)


@pytest.mark.parametrize(
    ("version", "block", "mode"),
    [
        ("0.10.2", 80, "none"),
        ("0.15.1", 2048, "all"),
        ("0.27.1", 2048, "all"),
        ("0.28.0", 80, "align"),
    ],
)
def test_mode_all_rounds_to_the_chunk(version: str, block: int, mode: str) -> None:
    deployment = Deployment(version=version, enable_prefix_caching=True)
    page = derive_page(model(JAMBA), deployment, alignment_tokens=16)
    assert (page.block_size_tokens, page.mamba_cache_mode) == (block, mode)


@pytest.mark.parametrize(
    ("version", "block"),
    [("0.10.2", 1888), ("0.11.1", 1920), ("0.20.2", 1888), ("0.27.1", 1920), ("0.33.0", 1920)],
)
def test_mla_granularity_by_release(version: str, block: int) -> None:
    page = derive_page(
        model(KIMI),
        Deployment(version=version),
        backends=(backend_sizes("TRITON_MLA", parse_version(version)),),
    )
    assert page.block_size_tokens == block


@pytest.mark.parametrize(
    ("version", "state"), [("0.12.0", 2_158_592), ("0.19.1", 2_158_592), ("0.20.0", 4_255_744)]
)
def test_nemotron_ssm_dtype_by_release(version: str, state: int) -> None:
    page = derive_page(model(NEMOTRON), Deployment(version=version), alignment_tokens=16)
    assert page.state_bytes == state


def test_groups_are_replicated_when_there_are_more_ranks() -> None:
    page = derive_page(model(NEMOTRON | {"n_groups": 3}), Deployment(tensor_parallel_size=2))
    conv = page.state_tensors[0]
    assert conv.shape == (3, (8192 + 2 * 2 * 128) // 2)


@pytest.mark.parametrize(
    ("deployment", "error_class", "text"),
    [
        (Deployment(tensor_parallel_size=5), "ValidationError", "must be divisible by tensor"),
        (Deployment(mamba_cache_mode="all"), "ValidationError", "'align' or 'none'"),
        (
            Deployment(mamba_block_size=512, enable_prefix_caching=False),
            "ValidationError",
            "--mamba-block-size can only be set with --enable-prefix-caching",
        ),
        (Deployment(version="0.9.2"), "ValueError", "should be increased to at least 400"),
        (
            Deployment(version="0.20.1", kv_cache_dtype="turboquant_k8v4"),
            "NotImplementedError",
            "not supported for hybrid",
        ),
    ],
)
def test_refusals_are_the_engines_own(deployment: Deployment, error_class: str, text: str) -> None:
    with pytest.raises(EngineRefusalError, match=text) as caught:
        derive_page(model(), deployment, alignment_tokens=16)
    assert caught.value.error_class == error_class
    assert caught.value.exit_status == 4


def test_tensor_parallel_that_splits_a_head_is_refused() -> None:
    text = QWEN_27B["text_config"] | {"num_attention_heads": 32, "linear_num_value_heads": 24}
    with pytest.raises(InfeasibleError, match="24 is not divisible by 16"):
        derive_page(model(QWEN_27B | {"text_config": text}), Deployment(tensor_parallel_size=16))


def test_backends_that_share_no_size_are_refused() -> None:
    pair = (backend_sizes("CPU_MLA", NEWEST), backend_sizes("STUB_M64", NEWEST))
    with pytest.raises(
        EngineRefusalError, match=r"CPU_MLA: \[16\]; STUB_M64: \[MultipleOf\(64\)\]"
    ):
        derive_page(model(), Deployment(), backends=pair)


def test_first_backend_rounds_then_all_do() -> None:
    pair = (backend_sizes("STUB_M48", NEWEST), backend_sizes("STUB_M64", NEWEST))
    assert derive_page(model(), Deployment(), backends=pair).block_size_tokens == 960


def test_a_backend_of_exact_sizes_supports_only_those() -> None:
    exact = BackendSizes(name="x", exact=(64,), exact_pages_only=True)
    assert exact.supports(64)
    assert not exact.supports(128)


def test_no_backend_leaves_the_block_size_alone() -> None:
    page = derive_page(model(), Deployment(), backends=())
    assert (page.block_size_tokens, page.rule_ran) == (16, False)


@pytest.mark.parametrize(("tp", "block"), [(1, 1536), (4, 1536), (8, 768)])
def test_ascend_k_half_equals_the_state(tp: int, block: int) -> None:
    page = derive_page(model(), Deployment(engine="vllm-ascend", tensor_parallel_size=tp))
    assert page.block_size_tokens == block


def test_ascend_310p_keeps_the_upstream_formula() -> None:
    deployment = Deployment(engine="vllm-ascend", ascend_310p=True)
    assert derive_page(model(), deployment).block_size_tokens == 896
    with pytest.raises(EngineRefusalError, match="MLA is not supported on 310P"):
        derive_page(model(KIMI), deployment)


def test_ascend_refuses_a_state_that_no_page_equals() -> None:
    text = QWEN_27B["text_config"] | {"linear_num_value_heads": 47, "num_attention_heads": 24}
    with pytest.raises(EngineRefusalError, match="Cannot align") as caught:
        derive_page(model(QWEN_27B | {"text_config": text}), Deployment(engine="vllm-ascend"))
    assert caught.value.error_class == "AssertionError"


def test_a_removed_architecture_is_refused_or_falls_back() -> None:
    minimax = {
        "architectures": ["MiniMaxText01ForCausalLM"],
        "dtype": "bfloat16",
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
    }
    with pytest.raises(EngineRefusalError, match=r"until v0\.23\.0"):
        derive_page(model(minimax), Deployment(version="0.32.0"))
    old = derive_page(model(minimax), Deployment(version="0.23.0"), alignment_tokens=16)
    assert old.state_bytes == 64 * 128 * 128 * 2


def test_a_plain_model_needs_no_derivation() -> None:
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "dtype": "bfloat16",
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    }
    page = derive_page(model(config), Deployment(), alignment_tokens=16)
    assert (page.hybrid, page.block_size_tokens, page.state_bytes) == (False, 16, None)
    assert any("not hybrid" in note for note in page.notes)


def test_every_step_has_a_source() -> None:
    page = derive_page(model(), Deployment(), alignment_tokens=64)
    assert all(step.source.startswith("vllm-") for step in page.steps)
    assert [step.value for step in page.steps if step.name == "page"] == [832]


@pytest.mark.parametrize(
    ("text", "version"),
    [("0.32.0", (0, 32, 0)), ("v0.11.0rc1", (0, 11, 0)), ("0.18.1+das.dtk2604", (0, 18, 1))],
)
def test_versions(text: str, version: tuple[int, int, int]) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["", "latest", "0", "1.2.3.4", "0.32.0 ; rm", "-1.0"])
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(InputError, match="version"):
        parse_version(text)


def test_a_newer_release_follows_the_newest_rule_and_says_so() -> None:
    rule = select_rule("vllm", "1.4.0")
    assert rule.version == NEWEST
    assert "newer than the newest rule" in rule.notes[0]


def test_a_release_without_a_rule_is_refused() -> None:
    with pytest.raises(InfeasibleError, match=r"0\.9\.2"):
        select_rule("vllm", "0.8.5")


def test_a_missing_dtype_is_asked_for_and_not_guessed() -> None:
    shape = replace(model(), dtype="")
    with pytest.raises(InputError, match="key 'dtype'"):
        derive_page(shape, Deployment())
    assert derive_page(shape, Deployment(dtype="bfloat16"), alignment_tokens=16).block_size_tokens
