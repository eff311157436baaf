"""What the counters of the vllm-ascend hook amount to, and how a report shows them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from hwtune.domain.attn_states import attn_state_checks, attn_states, describe
from hwtune.domain.check_kernels import tallies
from hwtune.domain.evidence import Evidence, KernelCount, Mark, Place
from tests.unit.test_planning_ascend import plan

FIA = "npu_fused_infer_attention_score"
PLACE = Place(file="server.log", line=7, process="Worker", time=None, text="counting")


def count(kernel: str, outcome: str, state: str, calls: int, process: int = 1) -> KernelCount:
    return KernelCount(
        process=process,
        nonce="n",
        kernel=kernel,
        outcome=cast("Any", outcome),
        reason=state,
        calls=calls,
    )


TWO_WORKERS = tuple(
    counted
    for process in (1, 2)
    for counted in (
        count("attn_state", "returned", "PrefillNoCache", 1, process),
        count("attn_state", "returned", "SpecDecoding", 30, process),
        count("attn_state", "stored", "PrefillNoCache", 1, process),
        count("attn_state", "stored", "ChunkedPrefill", 30, process),
        count("forward_impl", "called", "PrefillNoCache", 4, process),
        count("forward_impl", "recorded", "ChunkedPrefill", 8, process),
        count(FIA, "called", "PrefillNoCache", 4, process),
        count(FIA, "recorded", "ChunkedPrefill", 8, process),
    )
)


def test_the_counts_of_all_workers_are_summed() -> None:
    states = attn_states(TWO_WORKERS)
    assert states is not None
    assert states.processes == 2
    assert states.returned == (("SpecDecoding", 60), ("PrefillNoCache", 2))
    assert states.stored == (("ChunkedPrefill", 60), ("PrefillNoCache", 2))
    assert [(c.state, c.called, c.recorded) for c in states.calls] == [
        ("ChunkedPrefill", 0, 16),
        ("PrefillNoCache", 8, 0),
    ]
    assert states.unexplained == 0


def test_calls_that_took_another_way_are_told() -> None:
    more = attn_states((*TWO_WORKERS, count("forward_impl", "called", "DecodeOnly", 5)))
    assert more is not None
    assert describe(more).endswith("; 5 calls of forward_impl took another way")


def test_the_stored_state_is_shown_where_it_differs() -> None:
    states = attn_states(TWO_WORKERS)
    assert states is not None
    text = describe(states)
    assert "steps: SpecDecoding 60, PrefillNoCache 2; stored: ChunkedPrefill 60" in text
    assert f"{FIA} in ChunkedPrefill 0 (+16 recorded)" in text
    same = attn_states((count("attn_state", "returned", "DecodeOnly", 3),
                        count("attn_state", "stored", "DecodeOnly", 3)))  # fmt: skip
    assert same is not None
    assert describe(same) == ("steps: DecodeOnly 3; calls: none of the ones that are counted")


def test_the_engines_own_calls_are_no_hits_of_hwtune() -> None:
    kernels = (*TWO_WORKERS, count("page_decode", "hit", "", 3))
    assert [item.kernel for item in tallies(Evidence(counts=kernels))] == ["page_decode"]
    assert attn_states((count("page_decode", "hit", "", 3),)) is None


@pytest.mark.parametrize(
    ("counts", "marked", "require", "status", "reason"),
    [
        (TWO_WORKERS, True, True, "passed", ""),
        ((), True, True, "failed", "no step was counted"),
        ((), False, True, "failed", "the hook is in no process"),
        ((), True, False, "skipped", "no step was counted; no request served yet"),
    ],
)
def test_a_plan_that_counts_wants_counted_steps(
    counts: tuple[KernelCount, ...], marked: bool, require: bool, status: str, reason: str
) -> None:
    mark = Mark(kind="counting", nonce="n", fields={}, place=PLACE)
    evidence = Evidence(counts=counts, plan=plan(counting=True), marks=(mark,) if marked else ())
    (check,) = attn_state_checks(evidence, require=require)
    assert (check.status, check.reason) == (status, reason)


def test_a_plan_that_does_not_count_is_not_asked() -> None:
    assert list(attn_state_checks(Evidence(plan=plan()), require=True)) == []
    assert list(attn_state_checks(Evidence(), require=True)) == []
