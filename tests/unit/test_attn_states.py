"""What the counters of the vllm-ascend hook amount to, and how a report shows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from hwtune.domain.attn_states import attn_state_checks, attn_states, describe
from hwtune.domain.check_kernels import tallies
from hwtune.domain.evidence import Evidence, KernelCount, Mark, Place
from hwtune.domain.markers import check
from hwtune.io.counters import CounterFile
from hwtune.io.plans import write_plan
from hwtune.io.run_evidence import collect
from hwtune.report.markers import report_to_json, report_to_text
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


def test_a_run_directory_with_counts_in_every_format(tmp_path: Path) -> None:
    counting = plan(counting=True)
    write_plan(counting, tmp_path)
    counters = CounterFile(tmp_path, counting.nonce)
    for kernel, outcome, state, calls in (
        ("attn_state", "returned", "DecodeOnly", 61),
        ("attn_state", "stored", "DecodeOnly", 61),
        ("forward_impl", "called", "DecodeOnly", 244),
        (FIA, "called", "DecodeOnly", 244),
    ):
        counters.view[counters.slot(kernel, outcome, state)] += calls
    (tmp_path / "server.log").write_text(
        "(Worker pid=9) INFO 11-30 06:51:47 [runtime.py:70] hwtune[n] observing "
        "backend=vllm-ascend version=0.18.0\n"
        "(Worker pid=9) INFO 11-30 06:51:49 [runtime.py:70] hwtune[n] counting "
        "target=NPUModelRunner._build_attn_state version=0.18.0\n"
    )
    evidence = collect(tmp_path)
    report = check(evidence, counting.expect, require_kernel_hits=True)
    checks = {item.name: item for item in report.checks}
    assert checks["attn_state"].status == checks["plugin"].status == "passed"
    assert checks["attn_state"].evidence[0].line == 2
    text = "steps: DecodeOnly 61; calls: npu_fused_infer_attention_score in DecodeOnly 244"
    assert f"PASS attn_state: {text}" in " ".join(report_to_text(report, evidence).split())
    data = json.loads(report_to_json(report, evidence))
    assert data["attn_states"] == {
        "processes": 1,
        "returned": {"DecodeOnly": 61},
        "stored": {"DecodeOnly": 61},
        "calls": [{"operator": FIA, "state": "DecodeOnly", "called": 244, "recorded": 0}],
        "forwards": 244,
    }
    assert data["kernels"] == []
    assert evidence.value("plugins_loaded") == ("hwtune",)


def test_a_plan_that_does_not_count_is_not_asked() -> None:
    assert list(attn_state_checks(Evidence(plan=plan()), require=True)) == []
    assert list(attn_state_checks(Evidence(), require=True)) == []
