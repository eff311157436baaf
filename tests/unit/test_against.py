"""Predicted and counted calls, and what is said about a difference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hwtune.domain.attn_states import AttnStates, CallCount
from hwtune.domain.bench import RequestRecord
from hwtune.domain.check_kernels import KernelTally
from hwtune.domain.scheduler.against import (
    RunFacts,
    compare_counts,
    items_of_records,
    preceded,
)
from hwtune.domain.scheduler.ascend_calls import FIA
from hwtune.domain.scheduler.attention_work import Work
from hwtune.domain.scheduler.prediction import Forecast, KernelForecast
from hwtune.domain.scheduler.workloads import WorkItem, Workload
from hwtune.report.against import comparisons_record, show_comparisons
from hwtune.report.tables import Format

FACTS = RunFacts(
    arm="candidate",
    concurrency=1,
    open_loop=False,
    failed_requests=0,
    foreign_requests=0,
    graphs=False,
    calls_per_step=2,
)
KERNEL = KernelForecast(
    name="vendor_prefill",
    phase="prefill",
    hit_steps=5,
    eligible_steps=5,
    eligible_hits=5,
    fallbacks={"query shorter than 2": 20},
    eligible_fallbacks={},
    work=Work(),
)
FORECAST = Forecast(work=Work(), prefill_steps=5, mixed_steps=0, kernels=(KERNEL,), paths={})


def tally(hits: int, decodes: int, **more: Any) -> KernelTally:
    values: dict[str, Any] = {"captured": 0, "faults": 0} | more
    fallbacks = (("query shorter than 2", decodes), *values.pop("also", ()))
    return KernelTally(kernel="vendor_prefill", hits=hits, fallbacks=fallbacks, **values)


def test_calls_are_steps_times_layers() -> None:
    comparison = compare_counts(FORECAST, [tally(10, 40)], FACTS)
    assert comparison.agreement == "exact"
    assert [(row.outcome, row.predicted, row.counted) for row in comparison.rows] == [
        ("hit", 10, 10),
        ("query shorter than 2", 40, 40),
    ]
    assert comparison.reasons == ()


def test_one_call_too_many_is_a_difference_when_requests_came_one_by_one() -> None:
    comparison = compare_counts(FORECAST, [tally(10, 42)], FACTS)
    assert comparison.agreement == "differs"
    several = compare_counts(FORECAST, [tally(10, 42)], replace(FACTS, concurrency=4))
    assert several.agreement == "not exact by nature"
    assert "concurrency 4" in several.reasons[0]


def test_what_broke_is_never_called_natural() -> None:
    facts = replace(FACTS, concurrency=4, failed_requests=2)
    comparison = compare_counts(FORECAST, [tally(8, 40, faults=2)], facts)
    assert comparison.agreement == "differs"
    text = "\n".join(comparison.reasons)
    assert "2 requests failed" in text
    assert "2 calls raised" in text


def test_a_reason_nobody_predicted_is_shown() -> None:
    also = (("implementation prefill.x unavailable: no module", 10),)
    comparison = compare_counts(FORECAST, [tally(0, 40, also=also)], FACTS)
    assert comparison.rows[-1].predicted == 0
    assert comparison.rows[-1].counted == 10
    assert "unavailable" in comparison.reasons[-1]


def test_what_vllm_ascend_counts_is_compared_too() -> None:
    forecast = replace(
        FORECAST,
        kernels=(),
        ascend_states={"DecodeOnly": 20, "ChunkedPrefill": 5},
        ascend_calls={f"{FIA}, all rows": 23, f"{FIA}, decode rows": 2},
    )
    states = AttnStates(
        processes=1,
        returned=(("DecodeOnly", 20), ("ChunkedPrefill", 5)),
        stored=(("DecodeOnly", 20), ("ChunkedPrefill", 5)),
        calls=(CallCount(operator=FIA, state="DecodeOnly", called=49, recorded=0),),
        forwards=49,
    )
    comparison = compare_counts(forecast, [], FACTS, states)
    assert [(row.kernel, row.outcome, row.predicted, row.counted) for row in comparison.rows] == [
        ("attn_state", "DecodeOnly", 20, 20),
        ("attn_state", "ChunkedPrefill", 5, 5),
        (FIA, "called", 50, 49),
    ]


def test_missing_counters_are_said() -> None:
    comparison = compare_counts(FORECAST, [], FACTS)
    assert comparison.agreement == "differs"
    assert "no call was counted" in comparison.reasons[0]
    shown = show_comparisons([comparison], Format.TABLE)
    assert "no call was counted" in shown
    assert comparisons_record([comparison])["comparisons"][0]["rows"][0]["predicted"] == 10


def record(start: float, prompt: int, **more: Any) -> RequestRecord:
    values: dict[str, Any] = {
        "arm": "candidate",
        "phase": "measured",
        "tier": "1-2K",
        "pair": 0,
        "prompt": prompt,
        "prompt_id": f"p{prompt}",
        "started_unix_s": start,
        "ended_unix_s": start + 1,
        "prompt_tokens": 100 + prompt,
        "output_tokens": 8,
    }
    return RequestRecord(**(values | more))


def test_blocks_follow_one_another_in_the_order_of_sending() -> None:
    records = [
        record(5.0, 0, pair=1),
        record(1.0, 0, phase="warm-up"),
        record(2.5, 1),
        record(2.0, 0),
        record(3.0, 2, failure="timeout"),
    ]
    items = items_of_records(records)
    assert [(item.prompt_tokens, item.block) for item in items] == [
        (100, 0),
        (100, 1),
        (101, 1),
        (100, 2),
    ]
    assert items[2].arrival_ms == 1500.0
    assert items_of_records([]) == ()


def test_the_probe_comes_first_and_alone() -> None:
    items = items_of_records([record(1.0, 0)])
    workload = Workload(items=items, pacing="closed loop", concurrency=4, title="")
    probe = WorkItem(id="probe", prompt_tokens=32, output_tokens=4)
    assert [(item.id, item.block) for item in preceded(workload, probe).items] == [
        ("probe", 0),
        ("r0", 1),
    ]
