"""What is said before the launch; each lint also has a case in which it is silent."""

from __future__ import annotations

from typing import Any

import pytest

from hwtune.domain.capacity import Capacity, capacity
from hwtune.domain.deployment import Deployment
from hwtune.domain.lints import lint_page
from hwtune.domain.page import derive_page
from hwtune.families import read_shape
from tests.unit.test_page_rules import QWEN_27B


def _names(deployment: Deployment, alignment: int = 64, **arguments: Any) -> set[str]:
    page = derive_page(read_shape(QWEN_27B, "x"), deployment, alignment_tokens=alignment)
    memory = arguments.pop("memory", None)
    fits: Capacity | None = capacity(page, memory) if memory else None
    return {lint.name for lint in lint_page(page, fits=fits, **arguments)}


def test_a_good_deployment_has_no_findings() -> None:
    good = Deployment(max_num_batched_tokens=8192, max_num_seqs=64, max_model_len=8192)
    assert _names(good, kernel_multiple=64, prompt_tokens=4096) == set()


@pytest.mark.parametrize(
    ("budget", "seqs", "expected"),
    [(831, 1, "page-above-budget"), (832, 1, None), (832, 2, "prefill-starves"), (4096, 256, None)],
)
def test_token_budget_in_align_mode(budget: int, seqs: int, expected: str | None) -> None:
    names = _names(Deployment(max_num_batched_tokens=budget, max_num_seqs=seqs))
    assert names == ({expected} if expected else set())


def test_the_budget_does_not_matter_without_prefix_caching() -> None:
    assert _names(Deployment(max_num_batched_tokens=100, enable_prefix_caching=False)) == set()


def test_a_page_above_the_budget_is_an_error_where_vllm_asserts() -> None:
    old = Deployment(version="0.18.0", max_num_batched_tokens=512, enable_prefix_caching=True)
    page = derive_page(read_shape(QWEN_27B, "x"), old, alignment_tokens=16)
    assert [lint.level for lint in lint_page(page)] == ["error"]


def test_kernels_and_block_size_multiples() -> None:
    assert _names(Deployment(), alignment=16, kernel_multiple=64) == {"kernels-need-multiple"}
    asked = Deployment(block_size=48)
    assert "block-size-multiple" in _names(asked, alignment=16, kernel_multiple=64)


@pytest.mark.parametrize(("prompt", "hits"), [(832, False), (833, True)])
def test_prefix_caching_needs_a_whole_page_before_the_last_token(prompt: int, hits: bool) -> None:
    assert ("prefix-cannot-hit" in _names(Deployment(), prompt_tokens=prompt)) is not hits


def test_states_limit_the_sequences() -> None:
    tight = Deployment(max_num_seqs=256, max_model_len=8192)
    assert "max-num-seqs" in _names(tight, memory=8 * 2**30)
    assert "max-num-seqs" not in _names(tight, memory=640 * 2**30)


def test_padding_and_fp8_and_length() -> None:
    assert "mostly-padding" in _names(Deployment(block_size=4096))
    assert "fp8-lengthens-page" in _names(Deployment(kv_cache_dtype="fp8"))
    assert "max-model-len" in _names(Deployment(max_model_len=10**6))


def test_ascend_wants_equality() -> None:
    wide = Deployment(engine="vllm-ascend", block_size=2048)
    assert "ascend-equality" in _names(wide)
    assert "ascend-equality" not in _names(Deployment(engine="vllm-ascend", block_size=128))
