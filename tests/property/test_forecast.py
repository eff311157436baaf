"""Prediction against the plugin's own dispatch, and sums against sums taken one by one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hwtune.adapters.vllm.dispatch import bind_layer
from hwtune.domain.kernel import KernelConditions, KernelSpec, LayerTraits
from hwtune.domain.scheduler.attention_work import LayerCost, Work, step_work
from hwtune.domain.scheduler.classify import BatchRow, RunnerOptions, ascend_classes
from hwtune.domain.scheduler.kernel_paths import KernelPaths, call_shape
from hwtune.domain.scheduler.prediction import Forecaster
from hwtune.domain.scheduler.values import Step, Stretch

LAYER = LayerTraits(
    num_heads=24,
    num_kv_heads=4,
    head_size=256,
    dtype="bfloat16",
    kv_cache_dtype="auto",
    block_size=832,
)
COST = LayerCost(flops_per_pair=4, kv_bytes_per_token=10, io_bytes_per_token=3)

rows = st.lists(
    st.builds(
        BatchRow,
        st.integers(1, 12),
        st.integers(0, 30),
        st.just(0),
        st.integers(1, 40),
    ),
    min_size=1,
    max_size=5,
)


@st.composite
def kernels(draw: st.DrawFn) -> KernelSpec:
    low = draw(st.integers(1, 6))
    when = KernelConditions(
        min_query_len=low,
        max_query_len=draw(st.integers(low, 12)),
        single_sequence=draw(st.booleans()),
        min_context_len=draw(st.integers(0, 40)),
        block_size_multiple_of=draw(st.sampled_from([1, 64, 128])),
    )
    return KernelSpec(name="k", implementation="k.test", when=when, source="test")


profiles = st.lists(kernels(), max_size=3).map(
    lambda specs: tuple(replace(spec, name=f"k{at}") for at, spec in enumerate(specs))
)


class InMemory:
    def __init__(self) -> None:
        self.keys: list[tuple[str, str, str]] = []
        self.view = memoryview(bytearray(8 * 64)).cast("Q")

    def slot(self, kernel: str, outcome: str, reason: str = "") -> int:
        key = (kernel, outcome, reason)
        if key not in self.keys:
            self.keys.append(key)
        return self.keys.index(key)


@given(profiles, rows, st.booleans())
def test_the_prediction_is_what_the_plugin_does(
    specs: tuple[KernelSpec, ...], batch: list[BatchRow], observed: bool
) -> None:
    counters = InMemory()

    def run() -> None:
        """Stands for a kernel."""

    dispatcher = bind_layer(specs, LAYER, lambda spec: None if observed else run, counters)
    chosen = dispatcher.select(call_shape(batch))
    if chosen is not None:
        chosen.count_hit(False)
    outcome = KernelPaths(specs, LAYER, observed=observed).outcome(call_shape(batch))
    assert outcome.taken_by == (chosen.name if chosen else None)
    counted = {key: n for key, n in zip(counters.keys, counters.view, strict=False) if n}
    expected = Counter(
        (spec.name, "hit" if reason is None else "fallback", reason or "")
        for spec, reason in zip(specs, outcome.reasons, strict=True)
    )
    assert counted == expected


decodes = st.lists(st.integers(1, 60), min_size=1, max_size=4).map(
    lambda cursors: [BatchRow(1, cursor, 0, 1) for cursor in cursors]
)


def stretch(batch: list[BatchRow], count: int) -> Stretch:
    entries = tuple(
        (f"r{at}", row.scheduled_tokens, row.computed_tokens, row.draft_tokens, "running",
         row.prompt_tokens, row.context_tokens)
        for at, row in enumerate(batch)
    )  # fmt: skip
    first = Step(
        index=0,
        entries=entries,  # type: ignore[arg-type]
        total=sum(row.scheduled_tokens for row in batch),
        budget_left=0,
        preempted=(),
        running=(),
        waiting=(),
        blocks={},
        held={},
        free=0,
        free_after=0,
        out={},
        finished=(),
    )
    return Stretch(first=first, count=count)


@given(profiles, decodes, st.integers(1, 50))
def test_a_stretch_counts_like_its_steps(
    specs: tuple[KernelSpec, ...], batch: list[BatchRow], count: int
) -> None:
    at_once, one_by_one = (Forecaster(KernelPaths(specs, LAYER), COST) for _ in range(2))
    whole = stretch(batch, count)
    at_once.add(whole)
    for step in whole.steps():
        one_by_one.add(Stretch(first=step, count=1))
    assert at_once.result() == one_by_one.result()
    assert at_once.result().work.steps == count


@given(rows)
def test_the_work_of_a_step_is_that_of_its_pairs(batch: list[BatchRow]) -> None:
    pairs = tokens = cached = 0
    for query, computed, _, _ in batch:
        tokens += query
        cached += query + computed
        pairs += sum(computed + position + 1 for position in range(query))
    assert step_work(batch, COST) == Work(1, tokens, 4 * pairs, 10 * cached + 3 * tokens)


@given(rows, st.integers(0, 4))
def test_splits_share_out_every_row_and_token(batch: list[BatchRow], drafts: int) -> None:
    classes = ascend_classes(batch, RunnerOptions(num_speculative_tokens=drafts))
    for split in (classes.split, classes.gdn_split):
        assert split.num_decodes + split.num_prefills == len(batch)
        tokens = sum(row.scheduled_tokens for row in batch)
        assert split.num_decode_tokens + split.num_prefill_tokens == tokens
    if classes.v1 == "DecodeOnly":
        assert classes.split.num_prefills == 0
