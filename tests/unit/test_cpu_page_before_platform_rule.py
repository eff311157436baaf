"""vLLM 0.18 and 0.19 on the CPU, where the platform writes its block size back over the page."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hwtune.domain.deployment import Deployment
from hwtune.domain.model import ModelShape
from hwtune.domain.page_derive import derive_page
from hwtune.domain.page_options import default_page
from hwtune.domain.page_steps import EngineRefusalError
from hwtune.io.model_config import load_model
from hwtune.io.profiles import load_profile
from tests.unit.test_planning import PREFIX_OFF, plan

MODEL = Path(__file__).parents[2] / "examples" / "tiny-qwen3-next"
CPU = Deployment(
    platform="cpu",
    version="0.18.1",
    dtype="bfloat16",
    mamba_ssm_cache_dtype="float32",
    enable_prefix_caching=False,
    max_model_len=8192,
)


@pytest.fixture(scope="module")
def model() -> ModelShape:
    return load_model(str(MODEL))


def test_the_default_is_refused_as_vllm_refuses_it(model: ModelShape) -> None:
    with pytest.raises(EngineRefusalError, match="writes 128 back over the page 784") as refusal:
        default_page(model, CPU, load_profile("cpu"))
    assert refusal.value.error_class == "NotImplementedError"


@pytest.mark.parametrize("asked", [784, 832, 896])
def test_a_block_size_of_the_users_is_kept(model: ModelShape, asked: int) -> None:
    page = derive_page(model, dataclasses.replace(CPU, block_size=asked))
    assert page.block_size_tokens == asked
    assert f"--block-size {asked} is large enough and stays" in page.notes


def test_a_page_that_the_platforms_block_divides_starts(model: ModelShape) -> None:
    # Twenty draft tokens lengthen the convolution's state until the page is seven times 128.
    assert (
        derive_page(model, dataclasses.replace(CPU, num_speculative_tokens=20)).block_size_tokens
        == 896
    )


def test_0_17_writes_nothing_back(model: ModelShape) -> None:
    assert derive_page(model, dataclasses.replace(CPU, version="0.17.1")).block_size_tokens == 784


def test_on_a_gpu_the_same_release_starts(model: ModelShape) -> None:
    page = derive_page(model, dataclasses.replace(CPU, platform="cuda"))
    assert page.block_size_tokens == 784


def test_the_candidate_gives_the_page_and_the_baseline_is_refused() -> None:
    candidate = plan(version="0.18.1")
    assert [(flag.name, flag.value) for flag in candidate.added] == [("--block-size", "832")]
    assert candidate.expect.block_size == 832
    with pytest.raises(EngineRefusalError):
        plan(arm="baseline", version="0.18.1")
    given = plan(arm="baseline", version="0.18.1", flags=("--block-size", "896", *PREFIX_OFF))
    assert given.expect.block_size == 896


@pytest.mark.parametrize("block", [None, 64, 832])
def test_0_20_aligns_no_pages_on_the_cpu(model: ModelShape, block: int | None) -> None:
    asked = dataclasses.replace(CPU, version="0.20.2", block_size=block)
    with pytest.raises(EngineRefusalError, match=r"0\.20 aligns no pages") as refusal:
        derive_page(model, asked)
    assert refusal.value.error_class == "NotImplementedError"
    assert derive_page(model, dataclasses.replace(asked, version="0.21.0")).block_size_tokens


def test_0_20_starts_where_the_state_is_a_whole_number_of_blocks(model: ModelShape) -> None:
    whole = derive_page(model, dataclasses.replace(CPU, platform="cuda", version="0.20.2"))
    assert whole.state_bytes is not None
    tokens, rest = divmod(whole.state_bytes, whole.attention_bytes_per_token)
    assert not rest
    page = derive_page(
        model, dataclasses.replace(CPU, version="0.20.2", block_size=tokens), alignment_tokens=16
    )
    assert page.block_size_tokens == tokens
    assert "0.20 aligns no pages on CPU; the state takes 1 x the attention page" in page.notes


def test_0_20_is_refused_for_either_arm() -> None:
    for arm in ("baseline", "candidate"):
        with pytest.raises(EngineRefusalError, match=r"0\.20 aligns no pages"):
            plan(arm=arm, version="0.20.2")
