"""Capacity as real vLLM printed it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hwtune.domain.capacity import capacity
from hwtune.domain.deployment import Deployment
from hwtune.domain.model import ModelShape
from hwtune.domain.page import derive_page
from hwtune.families import read_shape
from tests.unit.test_page_rules import QWEN_27B


def _model(attention: int = 16, recurrent: int = 48) -> ModelShape:
    model = read_shape(QWEN_27B, "x")
    assert model.recurrent is not None
    return replace(
        model,
        attention=replace(model.attention, num_layers=attention),
        recurrent=replace(model.recurrent, num_layers=recurrent),
    )


def test_a_27b_request_holds_one_attention_and_three_state_groups() -> None:
    page = derive_page(_model(), Deployment(enable_prefix_caching=False), alignment_tokens=16)
    fits = capacity(page, 10 * 2**30, 8192)
    assert fits is not None
    assert (fits.layers_per_group, fits.attention_groups, fits.recurrent_groups) == (16, 1, 3)
    assert fits.num_blocks == 10 * 2**30 // 3_211_264 // 16
    assert fits.blocks_per_request == 11 + 3


def test_releases_up_to_0_19_print_whole_groups() -> None:
    deployment = Deployment(version="0.18.1", enable_prefix_caching=False, max_model_len=262_144)
    page = derive_page(_model(), deployment, alignment_tokens=16)
    fits = capacity(page, 142 * 16 * 3_211_264)
    assert fits is not None
    assert (fits.num_blocks, fits.tokens) == (142, 27_440)
    assert f"{fits.concurrency:.2f}" == "0.42"


@pytest.mark.parametrize(
    ("attention", "recurrent", "groups"),
    [(10, 12, (12, 1, 1)), (10, 15, (10, 1, 2)), (4, 28, (4, 1, 7))],
)
def test_group_sizes(attention: int, recurrent: int, groups: tuple[int, int, int]) -> None:
    page = derive_page(_model(attention, recurrent), Deployment(), alignment_tokens=16)
    fits = capacity(page, 2**35, 8192)
    assert fits is not None
    assert (fits.layers_per_group, fits.attention_groups, fits.recurrent_groups) == groups


def test_draft_tokens_hold_state_blocks() -> None:
    page = derive_page(_model(), Deployment(num_speculative_tokens=3), alignment_tokens=16)
    fits = capacity(page, 2**35, 800)
    assert fits is not None
    assert fits.blocks_per_request == 1 + 3 * (2 + 3)


def test_unknown_layers_give_no_capacity() -> None:
    model = replace(_model(), attention=replace(_model().attention, num_layers=None))
    page = derive_page(model, Deployment(), alignment_tokens=16)
    assert capacity(page, 2**35) is None


@pytest.mark.parametrize(
    ("layers", "fields", "memory_gib", "printed"),
    [
        ((16, 48), {"version": "0.18.1", "max_model_len": 262_144}, 6.77, (27_440, "0.42")),
        ((16, 48), {"version": "0.18.1", "max_model_len": 32_768}, 6.63, (26_656, "3.07")),
        (
            (16, 48),
            {
                "version": "0.25.1",
                "max_model_len": 262_144,
                "num_speculative_tokens": 3,
                "speculative_method": "mtp",
            },
            80.17,
            (1_191_213, "4.54"),
        ),
        (
            (16, 48),
            {
                "version": "0.25.1",
                "max_model_len": 262_144,
                "num_speculative_tokens": 3,
                "speculative_method": "mtp",
                "kv_cache_dtype": "fp8",
            },
            76.4,
            (2_192_477, "8.36"),
        ),
    ],
)
def test_capacity_lines_of_real_servers(
    layers: tuple[int, int], fields: dict[str, Any], memory_gib: float, printed: tuple[int, str]
) -> None:
    deployment = Deployment(enable_prefix_caching=False, **fields)
    model = replace(_model(*layers), mtp_layers=1)
    page = derive_page(model, deployment, alignment_tokens=16)
    fits = capacity(page, int(memory_gib * 2**30))
    assert fits is not None
    assert (fits.tokens, f"{fits.concurrency:.2f}") == printed
