"""The predicate that the plugin, the simulator and the planner share, against another reading.

The oracle below knows no order and no wording: it collects every condition that a call or a layer
breaks, from the documented meaning of each field. The predicate must say yes exactly when nothing
is broken, and otherwise name something that is.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwtune.domain.kernel import (
    CallShape,
    KernelConditions,
    LayerTraits,
    call_refusal,
    is_verification,
    static_refusal,
)
from hwtune.domain.scheduler.classify import BatchRow
from hwtune.domain.scheduler.kernel_paths import KernelPaths, call_shape
from hwtune.io.profiles import load_profile

DTYPES = st.sampled_from(["bfloat16", "float16", "float32"])
CACHES = st.sampled_from(["auto", "fp8"])
SIZES = st.sampled_from([64, 128, 256])
FEW = st.integers(1, 6)
FLAG = st.booleans()
LENGTH = st.integers(0, 9)

CONDITIONS = st.builds(
    KernelConditions,
    min_query_len=FEW,
    max_query_len=FEW,
    single_sequence=FLAG,
    block_size_multiple_of=st.sampled_from([1, 16, 64]),
    min_context_len=LENGTH,
    dtypes=st.lists(DTYPES, max_size=2).map(tuple),
    kv_cache_dtypes=st.lists(CACHES, max_size=2).map(tuple),
    head_sizes=st.lists(SIZES, max_size=2).map(tuple),
    num_heads=st.none() | st.sampled_from([4, 24]),
    num_kv_heads=st.none() | st.sampled_from([1, 4]),
    gqa_ratios=st.lists(st.sampled_from([1, 4, 6]), max_size=2).map(tuple),
    sliding_window=FLAG,
    soft_cap=FLAG,
    sinks=FLAG,
    verification=FLAG,
    in_graphs=FLAG,
)
LAYERS = st.builds(
    LayerTraits,
    num_heads=st.sampled_from([4, 24, 25]),
    num_kv_heads=st.sampled_from([1, 4]),
    head_size=SIZES,
    dtype=DTYPES,
    kv_cache_dtype=CACHES,
    block_size=st.sampled_from([16, 784, 832]),
    decoder=st.sampled_from([True, True, True, False]),
    sliding_window=FLAG,
    alibi=st.sampled_from([False, False, True]),
    soft_cap=FLAG,
    sinks=FLAG,
    kv_sharing=st.sampled_from([False, False, True]),
    chunked=st.sampled_from([False, False, True]),
    unreadable_cache=st.sampled_from([None, None, "packed cache"]),
)
CALLS = st.builds(
    CallShape,
    num_sequences=st.integers(1, 3),
    num_tokens=FEW,
    max_query_len=FEW,
    context_len=LENGTH,
    causal=st.sampled_from([True, True, False]),
    fused_output=st.sampled_from([False, False, True]),
    other_mask=st.sampled_from(["", "", "multimodal prefix"]),
    capturing=FLAG,
    verification=FLAG,
)


def broken_by_layer(when: KernelConditions, layer: LayerTraits) -> set[str]:
    """A word that the reason may hold, for each condition that does not hold."""
    pages = layer.block_size // when.block_size_multiple_of
    wrong = {
        "ALiBi": layer.alibi,
        "sharing": layer.kv_sharing,
        "chunked": layer.chunked,
        "window": layer.sliding_window > when.sliding_window,
        "cap": layer.soft_cap > when.soft_cap,
        "sinks": layer.sinks > when.sinks,
        "decoder": not layer.decoder,
        "packed cache": layer.unreadable_cache is not None,
        "dtype": layer.dtype not in (when.dtypes or (layer.dtype,)),
        "head size": layer.head_size not in (when.head_sizes or (layer.head_size,)),
        "KV dtype": layer.kv_cache_dtype not in when.kv_cache_dtypes,
        "query heads": (when.num_heads or layer.num_heads) != layer.num_heads,
        "KV heads": (when.num_kv_heads or layer.num_kv_heads) != layer.num_kv_heads,
        "GQA": when.gqa_ratios != ()
        and layer.num_heads / layer.num_kv_heads not in when.gqa_ratios,
        "page": pages * when.block_size_multiple_of != layer.block_size,
    }
    return {word for word, broken in wrong.items() if broken}


def broken_by_call(when: KernelConditions, call: CallShape) -> set[str]:
    wrong = {
        "longer": call.max_query_len not in range(when.max_query_len + 1),
        "query shorter": call.max_query_len not in range(when.min_query_len, 100),
        "more than one": when.single_sequence and call.num_sequences > 1,
        "padded": when.single_sequence and call.num_tokens != call.max_query_len,
        "context shorter": call.context_len not in range(when.min_context_len, 100),
        "verification": call.verification > when.verification,
        "capture": call.capturing > when.in_graphs,
        "multimodal prefix": call.other_mask != "",
        "causal": not call.causal,
        "fused": call.fused_output,
    }
    return {word for word, broken in wrong.items() if broken}


def agrees(reason: str | None, wrong: set[str]) -> bool:
    if reason is None:
        return not wrong
    return any(word in reason for word in wrong)


@given(when=CONDITIONS, layer=LAYERS)
def test_a_layer_is_refused_exactly_for_something_that_is_wrong(
    when: KernelConditions, layer: LayerTraits
) -> None:
    assert agrees(static_refusal(when, layer), broken_by_layer(when, layer))


@given(when=CONDITIONS, call=CALLS)
def test_a_call_is_refused_exactly_for_something_that_is_wrong(
    when: KernelConditions, call: CallShape
) -> None:
    assert agrees(call_refusal(when, call), broken_by_call(when, call))


VENDOR = next(k for k in load_profile("gfx936").kernels if k.name == "vendor_prefill").when
LAYER = LayerTraits(
    num_heads=24,
    num_kv_heads=4,
    head_size=256,
    dtype="bfloat16",
    kv_cache_dtype="auto",
    block_size=832,
)
CALL = CallShape(num_sequences=1, num_tokens=512, max_query_len=512, context_len=9000)


def test_the_vendors_prefill_takes_what_it_was_published_for() -> None:
    assert static_refusal(VENDOR, LAYER) is None
    for query in (2, 512, 4096):
        call = dataclasses.replace(CALL, num_tokens=query, max_query_len=query)
        assert call_refusal(VENDOR, call) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_tokens": 1, "max_query_len": 1}, "query shorter than 2"),
        ({"num_tokens": 4097, "max_query_len": 4097}, "query longer than 4096"),
        ({"num_sequences": 2, "num_tokens": 513}, "more than one sequence"),
        ({"num_tokens": 520}, "padded or mixed batch"),
        ({"num_tokens": 4, "max_query_len": 4, "verification": True}, "speculative verification"),
        ({"other_mask": "multimodal prefix"}, "multimodal prefix"),
        ({"causal": False}, "not causal"),
        ({"capturing": True}, "graph capture"),
        ({"fused_output": True}, "fused output quantisation"),
    ],
    ids=str,
)
def test_the_vendors_prefill_refuses_a_call_with_its_reason(
    change: dict[str, Any], reason: str
) -> None:
    assert call_refusal(VENDOR, dataclasses.replace(CALL, **change)) == reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"block_size": 784}, "page 784 not a multiple of 64"),
        ({"alibi": True}, "ALiBi"),
        ({"sinks": True}, "attention sinks"),
        ({"soft_cap": True}, "soft cap"),
        ({"sliding_window": True}, "sliding window"),
        ({"decoder": False}, "not decoder attention"),
        ({"dtype": "float16"}, "dtype float16, not bfloat16"),
        ({"kv_cache_dtype": "fp8"}, "KV dtype fp8, not auto"),
        ({"head_size": 128}, "head size 128, not 256"),
        ({"num_heads": 12}, "12 query heads, not 24"),
        ({"num_kv_heads": 2}, "2 KV heads, not 4"),
    ],
    ids=str,
)
def test_the_vendors_prefill_refuses_a_layer_with_its_reason(
    change: dict[str, Any], reason: str
) -> None:
    assert static_refusal(VENDOR, dataclasses.replace(LAYER, **change)) == reason


@pytest.mark.parametrize(
    ("row", "drafts", "verification"),
    [
        (BatchRow(4, 1000, 3, 900), 3, True),
        (BatchRow(3, 1000, 2, 900), 3, True),  # fewer drafts than allowed
        (BatchRow(1, 1000, 0, 900), 3, False),  # none: a plain decode
        (BatchRow(4, 996, 0, 1000), 3, False),  # the last four tokens of a prompt
        (BatchRow(5, 1000, 0, 900), 3, False),  # computes again what a preemption threw away
        (BatchRow(4, 1000, 0, 900), 0, False),
    ],
)
def test_simulated_steps_verify_drafts_by_the_rule_of_the_plugin(
    row: BatchRow, drafts: int, verification: bool
) -> None:
    assert call_shape([row], 0, drafts).verification is verification
    kernels = load_profile("gfx936").kernels
    taken = KernelPaths(kernels, LAYER, speculative_tokens=drafts).step([row]).taken_by
    expected = None if verification else "page_decode" if row[0] == 1 else "vendor_prefill"
    assert taken == expected


def test_without_word_of_who_prefills_every_short_step_may_verify() -> None:
    assert [is_verification(q, 3, None) for q in (1, 2, 4, 5)] == [False, True, True, False]
    assert not is_verification(4, 3, any_prefilling=True)
    assert not is_verification(4, 0, None)
