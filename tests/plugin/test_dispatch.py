"""Which kernel takes a call, and that every call is counted exactly once per kernel."""

from __future__ import annotations

import dataclasses
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hwtune_kernels import registry

from hwtune.adapters.vllm.dispatch import LayerDispatcher, bind_layer
from hwtune.domain.kernel import (
    OBSERVED_ONLY,
    CallShape,
    KernelConditions,
    KernelSpec,
    LayerTraits,
    TunedFor,
)
from hwtune.io.counters import CounterFile, read_counters
from tests.support import calls_of

PREFILL = KernelSpec(
    name="vendor_prefill",
    implementation="prefill.test",
    when=KernelConditions(min_query_len=2, max_query_len=4096, block_size_multiple_of=64),
    source="test",
)
DECODE = KernelSpec(
    name="page_decode",
    implementation="decode.test",
    when=KernelConditions(min_query_len=1, max_query_len=1),
    source="test",
)


class CountedInMemory:
    """Counters with the interface of CounterFile."""

    def __init__(self) -> None:
        self.keys: list[tuple[str, str, str]] = []
        self.view = memoryview(bytearray(8 * 64)).cast("Q")

    def slot(self, kernel: str, outcome: str, reason: str = "") -> int:
        key = (kernel, outcome, reason)
        if key not in self.keys:
            self.keys.append(key)
        return self.keys.index(key)

    def counts(self) -> Counter[tuple[str, str, str]]:
        return Counter({key: self.view[i] for i, key in enumerate(self.keys) if self.view[i]})


def layer(block_size: int = 832, **changes: Any) -> LayerTraits:
    values: dict[str, Any] = {
        "num_heads": 24,
        "num_kv_heads": 4,
        "head_size": 256,
        "dtype": "bfloat16",
        "kv_cache_dtype": "auto",
        "block_size": block_size,
    }
    return LayerTraits(**{**values, **changes})


def call(query: int, *, sequences: int = 1, tokens: int | None = None) -> CallShape:
    return CallShape(
        num_sequences=sequences,
        num_tokens=query if tokens is None else tokens,
        max_query_len=query,
        context_len=10_000,
    )


def bound(
    traits: LayerTraits,
    load: Callable[[KernelSpec], Any] = lambda spec: spec.implementation,
) -> tuple[LayerDispatcher, CountedInMemory]:
    counters = CountedInMemory()
    return bind_layer((PREFILL, DECODE), traits, load, counters), counters


def selected(dispatcher: LayerDispatcher, shape: CallShape) -> str | None:
    kernel = dispatcher.select(shape)
    return None if kernel is None else kernel.name


@pytest.mark.parametrize(
    ("shape", "taken_by"),
    [
        (call(1), "page_decode"),
        (call(2), "vendor_prefill"),
        (call(4096), "vendor_prefill"),
        (call(4097), None),
        (call(1, sequences=2, tokens=2), None),
        (call(4096, sequences=2, tokens=4097), None),
    ],
)
def test_each_shape_goes_where_it_belongs(shape: CallShape, taken_by: str | None) -> None:
    dispatcher, _ = bound(layer())
    assert selected(dispatcher, shape) == taken_by


def test_page_784_is_refused_for_its_page_and_says_so() -> None:
    dispatcher, counters = bound(layer(block_size=784))
    assert selected(dispatcher, call(4096)) is None
    reason = "page 784 not a multiple of 64"
    assert counters.counts()["vendor_prefill", "fallback", reason] == 1


def test_a_lone_verification_step_is_neither_a_prefill_nor_a_single_token_decode() -> None:
    dispatcher, counters = bound(layer())
    step = dataclasses.replace(call(4), verification=True)
    assert selected(dispatcher, step) is None
    assert counters.counts()["vendor_prefill", "fallback", "speculative verification"] == 1
    assert selected(dispatcher, call(4)) == "vendor_prefill"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sliding_window": True}, "sliding window"),
        ({"alibi": True}, "ALiBi"),
        ({"soft_cap": True}, "soft cap"),
        ({"sinks": True}, "attention sinks"),
        ({"decoder": False}, "not decoder attention"),
        ({"unreadable_cache": "cache packing amx"}, "cache packing amx"),
        ({"kv_cache_dtype": "fp8"}, "KV dtype fp8, not auto"),
    ],
)
def test_a_layer_with_more_than_plain_attention_is_refused(
    change: dict[str, Any], reason: str
) -> None:
    dispatcher, counters = bound(layer(**change))
    assert selected(dispatcher, call(4096)) is None
    assert counters.counts()["vendor_prefill", "fallback", reason] == 1


def test_every_call_is_counted_once_per_kernel_that_did_not_take_it() -> None:
    dispatcher, counters = bound(layer())
    for query in (1, 1, 1, 300):
        kernel = dispatcher.select(call(query))
        assert kernel is not None
        kernel.count_hit(capturing=False)
    assert counters.counts() == {
        ("page_decode", "hit", ""): 3,
        ("vendor_prefill", "fallback", "query shorter than 2"): 3,
        ("vendor_prefill", "hit", ""): 1,
        ("page_decode", "fallback", "query longer than 1"): 1,
    }


def test_a_call_inside_graph_capture_is_no_hit() -> None:
    dispatcher, counters = bound(layer())
    kernel = dispatcher.select(call(1))
    assert kernel is not None
    kernel.count_hit(capturing=True)
    assert counters.counts()["page_decode", "captured", ""] == 1
    assert counters.counts()["page_decode", "hit", ""] == 0


def test_a_kernel_that_raised_is_out_of_service() -> None:
    dispatcher, counters = bound(layer())
    kernel = dispatcher.select(call(1))
    assert kernel is not None
    kernel.retire(RuntimeError("boom"))
    assert selected(dispatcher, call(1)) is None
    assert counters.counts()["page_decode", "fallback", "raised RuntimeError before"] == 1


def test_the_baseline_observes_and_never_runs() -> None:
    dispatcher, counters = bound(layer(), load=lambda spec: None)
    assert selected(dispatcher, call(4096)) is None
    assert counters.counts()["vendor_prefill", "fallback", OBSERVED_ONLY] == 1


def test_an_implementation_that_is_missing_is_a_counted_reason() -> None:
    def missing(spec: KernelSpec) -> None:
        message = "no flash_attn"
        raise ImportError(message)

    dispatcher, counters = bound(layer(), load=missing)
    assert selected(dispatcher, call(4096)) is None
    assert any("no flash_attn" in reason for _, _, reason in counters.counts())


def test_refusing_takes_no_lock_does_no_io_and_keeps_no_memory(tmp_path: Path) -> None:
    dispatcher = bind_layer(
        (PREFILL, DECODE), layer(), lambda spec: None, CounterFile(tmp_path, "n")
    )

    def refuse() -> None:
        for _ in range(1000):
            dispatcher.select(call(8, sequences=8))

    refuse()  # the first call of a reason makes its key
    assert calls_of(refuse) == {
        *("select", "_decide", "call_refusal", "refusal_slot", "append", "_count"),
        *("call", "__init__", "get"),
    }
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    refuse()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 200
    counted = {c.kernel: c.calls for c in read_counters(tmp_path) if c.calls}
    assert counted == {"vendor_prefill": 3000, "page_decode": 3000}


def test_a_module_that_raises_while_it_is_loaded_is_a_fault_of_that_kernel_alone() -> None:
    def load(spec: KernelSpec) -> Any:
        if spec is PREFILL:
            message = "driver\ntoo old"
            raise RuntimeError(message)
        return "decode"

    counters, faults = CountedInMemory(), []
    dispatcher = bind_layer(
        (PREFILL, DECODE), layer(), load, counters, lambda error, kernel: faults.append(kernel)
    )
    assert selected(dispatcher, call(4096)) is None
    assert selected(dispatcher, call(1)) == "page_decode"
    assert faults == ["vendor_prefill"]
    reason = "implementation prefill.test unavailable: driver too old"
    assert counters.counts()["vendor_prefill", "fallback", reason] == 2


def test_a_layer_gets_the_constants_for_its_head_size_and_page() -> None:
    special = TunedFor(source="test", tuning={"num_warps": 2}, page_not_multiple_of=32)
    spec = dataclasses.replace(DECODE, tuning={"num_warps": 4, "rows": 8}, tuned=(special,))
    seen: list[dict[str, int]] = []
    for page in (832, 784):
        bind_layer((spec,), layer(page), lambda s: seen.append(s.tuning), CountedInMemory())
    assert seen == [{"num_warps": 4, "rows": 8}, {"num_warps": 2, "rows": 8}]


def test_a_provider_that_does_not_fit_is_one_reason_and_no_fault() -> None:
    """Through the registry, with a function that takes too little."""
    spec = dataclasses.replace(
        PREFILL, implementation="prefill.vendor", provider=f"{__name__}:selected"
    )
    faults: list[Exception] = []
    counters = CountedInMemory()
    dispatcher = bind_layer(
        (spec,),
        layer(),
        lambda s: registry.load(s.implementation, s.tuning, s.provider),
        counters,
        lambda error, kernel: faults.append(error),
    )
    assert selected(dispatcher, call(512)) is None
    ((kernel, outcome, reason),) = counters.counts()
    assert (kernel, outcome) == ("vendor_prefill", "fallback")
    assert "prefill.vendor unavailable" in reason
    assert "selected takes no q, k, v" in reason
    assert not faults


def like(dispatcher: LayerDispatcher, shape: CallShape) -> str | None:
    """Selects as the backend does: by a key of all that matters but the context."""
    key = (shape.num_sequences, shape.num_tokens, shape.max_query_len, shape.causal)
    kernel = dispatcher.select_like(key, shape.context_len, lambda: shape)
    return None if kernel is None else kernel.name


def test_a_remembered_decision_is_what_would_be_decided_anew() -> None:
    """Also where only the context differs, on either side of a kernel's least context."""
    long = dataclasses.replace(PREFILL, when=dataclasses.replace(PREFILL.when, min_context_len=900))
    kernels = (long, DECODE)
    afresh, remembering = CountedInMemory(), CountedInMemory()
    one = bind_layer(kernels, layer(), lambda spec: print, afresh)
    other = bind_layer(kernels, layer(), lambda spec: print, remembering)
    shapes = [
        dataclasses.replace(call(query, sequences=sequences), context_len=context)
        for query in (1, 2, 4096, 5000)
        for sequences in (1, 2)
        for context in (1, 899, 900, 901, 10_000)
    ]
    for shape in shapes * 3:
        assert like(other, shape) == selected(one, shape)
    assert remembering.counts() == afresh.counts()


def test_a_kernel_that_is_retired_is_not_remembered() -> None:
    dispatcher, counters = bound(layer())
    assert like(dispatcher, call(1)) == "page_decode"
    dispatcher.kernels[1].retire(RuntimeError())
    assert like(dispatcher, call(1)) is None
    assert like(dispatcher, call(1)) is None
    assert counters.counts()["page_decode", "fallback", "raised RuntimeError before"] == 2


def test_what_is_remembered_stays_small() -> None:
    dispatcher, _ = bound(layer())
    for tokens in range(5000):
        like(dispatcher, call(1, sequences=2, tokens=tokens))
    assert len(dispatcher._known) <= 1024


def test_remembering_takes_no_lock_does_no_io_and_keeps_no_memory(tmp_path: Path) -> None:
    dispatcher = bind_layer(
        (PREFILL, DECODE), layer(), lambda spec: None, CounterFile(tmp_path, "n")
    )
    shape = call(8, sequences=8)

    def refuse() -> None:
        for _ in range(1000):
            dispatcher.select_like((8, 8), 900, lambda: shape)

    refuse()
    assert calls_of(refuse) == {"select_like", "bisect_right", "get"}
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    refuse()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 200
