"""What holds for every page, whatever the model and the deployment."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from hwtune.domain.deployment import Deployment
from hwtune.domain.errors import HwtuneError
from hwtune.domain.model import ModelShape
from hwtune.domain.page import derive_page
from hwtune.domain.page_rules_attention import KV_CACHE_DTYPES
from hwtune.families import read_shape

_VERSIONS = [None, "0.10.1", "0.15.1", "0.18.1", "0.20.2", "0.27.1", "0.31.0", "0.33.0"]


@st.composite
def gdn_models(draw: st.DrawFn) -> ModelShape:
    heads = draw(st.sampled_from([4, 8, 16, 24, 32]))
    config = {
        "architectures": ["Qwen3_5ForCausalLM"],
        "dtype": draw(st.sampled_from(["bfloat16", "float16"])),
        "num_attention_heads": heads,
        "num_key_value_heads": draw(st.sampled_from([1, 2, 4])),
        "head_dim": draw(st.sampled_from([64, 128, 256])),
        "linear_num_key_heads": draw(st.sampled_from([8, 16, 32])),
        "linear_num_value_heads": draw(st.sampled_from([16, 32, 48, 64])),
        "linear_key_head_dim": draw(st.sampled_from([64, 128])),
        "linear_value_head_dim": draw(st.sampled_from([64, 128])),
        "linear_conv_kernel_dim": draw(st.integers(2, 8)),
        "mamba_ssm_dtype": draw(st.sampled_from(["float32", "bfloat16"])),
        "max_position_embeddings": 32768,
    }
    return read_shape(config, "config.json")


deployments = st.builds(
    Deployment,
    tensor_parallel_size=st.sampled_from([1, 2, 4]),
    kv_cache_dtype=st.sampled_from(["auto", "fp8", "bfloat16"]),
    enable_prefix_caching=st.sampled_from([None, True, False]),
    num_speculative_tokens=st.integers(0, 8),
    block_size=st.none() | st.integers(1, 4096),
    version=st.sampled_from(_VERSIONS),
)
alignments = st.sampled_from([1, 16, 32, 48, 64, 128, 256, 1024])


@given(gdn_models(), deployments, alignments)
def test_a_page_holds_the_state(model: ModelShape, deployment: Deployment, alignment: int) -> None:
    page = derive_page(model, deployment, alignment_tokens=alignment)
    assert page.state_bytes is not None
    assert page.attention_page_bytes >= page.state_bytes
    assert page.padding_bytes == page.attention_page_bytes - page.state_bytes
    assert (page.padding_pct is None) == (page.padding_bytes == 0)


@given(gdn_models(), deployments, alignments)
def test_the_page_is_a_multiple_and_the_smallest(
    model: ModelShape, deployment: Deployment, alignment: int
) -> None:
    free = replace(deployment, block_size=None)
    page = derive_page(model, free, alignment_tokens=alignment)
    assert page.block_size_tokens % page.alignment_tokens == 0
    assert page.state_bytes is not None
    shorter = page.block_size_tokens - page.alignment_tokens
    assert shorter * page.attention_bytes_per_token < page.state_bytes


@given(gdn_models(), deployments, alignments)
def test_more_draft_tokens_never_shorten_the_page(
    model: ModelShape, deployment: Deployment, alignment: int
) -> None:
    more = replace(deployment, num_speculative_tokens=deployment.num_speculative_tokens + 3)
    now = derive_page(model, deployment, alignment_tokens=alignment)
    assert derive_page(model, more, alignment_tokens=alignment).block_size_tokens >= (
        now.block_size_tokens
    )


@given(gdn_models(), deployments, alignments)
def test_what_does_not_enter_the_rule_does_not_move_the_page(
    model: ModelShape, deployment: Deployment, alignment: int
) -> None:
    other = replace(
        deployment,
        pipeline_parallel_size=2,
        max_num_seqs=7,
        max_num_batched_tokens=100,
        gpu_memory_utilization=0.5,
        max_model_len=4096,
    )
    page = derive_page(model, deployment, alignment_tokens=alignment)
    assert derive_page(model, other, alignment_tokens=alignment).block_size_tokens == (
        page.block_size_tokens
    )


@given(
    gdn_models(),
    st.builds(
        Deployment,
        tensor_parallel_size=st.integers(-2, 40),
        pipeline_parallel_size=st.integers(-1, 3),
        dtype=st.sampled_from(["auto", "half", "float32", "int8", ""]),
        kv_cache_dtype=st.sampled_from([*KV_CACHE_DTYPES, "nonsense"]),
        mamba_cache_dtype=st.sampled_from(["auto", "float32", "x"]),
        mamba_ssm_cache_dtype=st.sampled_from(["auto", "float16", "x"]),
        mamba_cache_mode=st.sampled_from([None, "none", "align", "all", "x"]),
        mamba_block_size=st.none() | st.integers(-1, 4096),
        enable_prefix_caching=st.sampled_from([None, True, False]),
        block_size=st.none() | st.integers(-5, 10**9),
        num_speculative_tokens=st.integers(-1, 10**6),
        kv_cache_dtype_skip_layers=st.sampled_from([(), ("3",)]),
        platform=st.sampled_from(["cuda", "rocm", "cpu", "xpu", "npu"]),
        engine=st.sampled_from(["vllm", "vllm-ascend"]),
        version=st.none() | st.text(max_size=8) | st.sampled_from(["0.9.2", "0.10.2", "9.9.9"]),
    ),
    st.none() | st.integers(-1, 10**6),
)
def test_any_deployment_gives_a_page_or_one_clear_line(
    model: ModelShape, deployment: Deployment, alignment: int | None
) -> None:
    try:
        page = derive_page(model, deployment, alignment_tokens=alignment)
    except HwtuneError as error:
        assert "\n" not in str(error)
        assert error.exit_status in (3, 4)
        return
    assert page.block_size_tokens >= 1


@given(gdn_models(), deployments)
def test_steps_end_in_the_page(model: ModelShape, deployment: Deployment) -> None:
    assume(deployment.block_size is None)
    page = derive_page(model, deployment, alignment_tokens=16)
    values = [step.value for step in page.steps if step.name == "page"]
    assert values == [page.block_size_tokens]
