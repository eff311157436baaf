"""Operators per device and state, after vllm-ascend's dispatch."""

from __future__ import annotations

import pytest

from hwtune.domain.scheduler.ascend_calls import (
    FIA,
    FIA_V2,
    PAGED,
    AscendLayer,
    attention_calls,
    gdn_calls,
)
from hwtune.domain.scheduler.classify import AscendState, GdnGroups, Split

DECODES = Split(4, 0, 4, 0)
MIXED = Split(1, 1, 1, 5)


def operators(layer: AscendLayer, state: AscendState, split: Split) -> list[tuple[str, str, bool]]:
    calls = attention_calls(layer, state, split)
    return [(call.operator, call.layout, call.reads_cache) for call in calls]


def test_by_default_every_step_is_one_fia_call() -> None:
    layer = AscendLayer(device="A2")
    assert operators(layer, "DecodeOnly", DECODES) == [(FIA, "TND", True)]
    assert operators(layer, "ChunkedPrefill", MIXED) == [(FIA, "TND", True)]
    assert operators(layer, "PrefillNoCache", Split(0, 1, 0, 5)) == [(FIA, "TND", False)]


def test_paged_attention_needs_full_decode_graphs_and_a_listed_size() -> None:
    layer = AscendLayer(device="A3", full_decode_only=True, paged_sizes=(4,))
    assert operators(layer, "DecodeOnly", DECODES) == [(PAGED, "", True)]
    assert operators(layer, "DecodeOnly", Split(3, 0, 3, 0)) == [(FIA, "TND", True)]
    drafting = AscendLayer(device="A3", full_decode_only=True, paged_sizes=(4,), speculative=True)
    assert operators(drafting, "DecodeOnly", DECODES)[0][0] == FIA
    assert operators(AscendLayer(device="A2", head_size=512), "DecodeOnly", DECODES)[0][0] == PAGED


def test_only_a5_calls_a_mixed_step_in_two() -> None:
    calls = attention_calls(AscendLayer(device="A5"), "ChunkedPrefill", MIXED)
    assert [call.part for call in calls] == ["decode rows", "prefill rows"]
    assert len(attention_calls(AscendLayer(device="A5"), "ChunkedPrefill", DECODES)) == 1


def test_an_int8_cache_decodes_in_its_own_layout() -> None:
    layer = AscendLayer(device="A2", int8_cache=True)
    assert operators(layer, "DecodeOnly", DECODES) == [(FIA, "BNSD", True)]
    assert operators(layer, "ChunkedPrefill", MIXED) == [(FIA, "BNSD", True), (FIA, "TND", True)]


def test_mla_and_sinks_take_the_second_operator() -> None:
    mla = AscendLayer(device="A2", is_mla=True)
    assert [call[:2] for call in operators(mla, "ChunkedPrefill", MIXED)] == [
        (FIA_V2, "BNSD_NBSD"),
        (FIA, "TND"),
    ]
    sinks = AscendLayer(device="A2", sinks=True)
    assert operators(sinks, "DecodeOnly", DECODES) == [(FIA_V2, "TND", True)]


@pytest.mark.parametrize(
    ("state", "operator"),
    [
        ("PrefillNoCache", "_npu_flash_attention"),
        ("DecodeOnly", PAGED),
        ("ChunkedPrefill", "_npu_paged_attention_splitfuse"),
        ("SpecDecoding", "_npu_paged_attention_splitfuse"),
    ],
)
def test_the_310p_has_three_operators(state: AscendState, operator: str) -> None:
    assert operators(AscendLayer(device="310P"), state, MIXED)[0][0] == operator


def test_a_mixed_step_runs_both_parts_of_gdn() -> None:
    both = [call.part for call in gdn_calls(GdnGroups(0, 1, 2))]
    assert both == ["decode rows", "prefill rows"]
    assert len(gdn_calls(GdnGroups(2, 0, 0))) == 1
