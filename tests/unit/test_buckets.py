"""Profiler traces: what each name is, who is charged, and when two arms may be compared."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from hwtune.domain.bucket_compare import compare_buckets, join_ranks
from hwtune.domain.buckets import Buckets, BucketTime, TraceEvent, Work, attribute
from hwtune.domain.errors import InputError
from hwtune.io.traces import load_bucket_rules, read_arm

RULES = load_bucket_rules()
STEP = "execute_context_{}({})_generation_{}({})"


def _bucket(name: str) -> str:
    return next((rule.bucket for rule in RULES if rule.pattern.search(name)), "other")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.bucket)
def test_rule_takes_its_examples_and_leaves_what_looks_alike(rule: Any) -> None:
    assert {name: _bucket(name) for name in rule.examples} == dict.fromkeys(
        rule.examples, rule.bucket
    )
    assert [name for name in rule.counter_examples if _bucket(name) == rule.bucket] == []


def _op(name: str, start: float, duration: float, track: str = "1/1") -> TraceEvent:
    return TraceEvent(name, "cpu_op", track, start, duration)


def _times(buckets: Buckets | None) -> dict[tuple[str, str], tuple[float, int]]:
    assert buckets is not None
    return {(row.bucket, row.phase): (row.time_us, row.calls) for row in buckets.rows}


def test_a_matrix_product_inside_attention_is_attention_and_is_counted_once() -> None:
    events = [
        _op("vllm::unified_attention_with_output", 0, 100),
        _op("aten::baddbmm", 10, 60),
        _op("aten::empty", 80, 5),
        _op("aten::mm", 100, 30),
    ]
    expected = {("attention", "all"): (100, 1), ("GEMM", "all"): (30, 1)}
    assert _times(attribute(events, RULES)) == expected


def test_self_time_of_an_unknown_parent_excludes_its_children() -> None:
    events = [_op("model", 0, 100), _op("aten::mm", 20, 30), _op("aten::mm", 60, 30)]
    expected = {("other", "all"): (40, 1), ("GEMM", "all"): (60, 2)}
    assert _times(attribute(events, RULES)) == expected


def test_order_in_the_file_and_other_threads_do_not_matter() -> None:
    events = [
        _op("aten::mm", 20, 30),
        _op("aten::mul", 0, 50, track="1/2"),
        _op("model", 0, 100),
    ]
    expected = {("other", "all"): (70 + 50, 2), ("GEMM", "all"): (30, 1)}
    assert _times(attribute(events, RULES)) == expected


def test_a_child_that_outlasts_its_parent_by_rounding_makes_no_negative_time() -> None:
    events = [_op("model", 0, 10), _op("aten::mm", 2, 9)]
    assert _times(attribute(events, RULES)) == {("other", "all"): (2, 1), ("GEMM", "all"): (8, 1)}


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ((8, 12), {"other": 8, "GEMM": 12}),  # two that overlap: the first ends
        ((0, 10), {"other": 0, "GEMM": 10}),  # a child of the same length
        ((10, 5), {"other": 10, "GEMM": 5}),  # back to back
    ],
)
def test_operators_that_overlap_make_up_the_time_that_passed(
    inner: tuple[float, float], expected: dict[str, float]
) -> None:
    found = attribute([_op("model", 0, 10), _op("aten::mm", *inner)], RULES)
    assert {bucket: time for (bucket, _), (time, _) in _times(found).items()} == expected


def test_what_is_cut_short_takes_its_children_along() -> None:
    events = [_op("model", 0, 10), _op("aten::mm", 5, 5), _op("aten::argmax", 8, 12)]
    assert {
        bucket: time for (bucket, _), (time, _) in _times(attribute(events, RULES)).items()
    } == {
        "other": 5,
        "GEMM": 3,
        "sampling": 12,
    }


def test_steps_are_counted_once_though_every_stream_repeats_them() -> None:
    def mark(start: float, track: str) -> TraceEvent:
        return TraceEvent(STEP.format(1, 100, 0, 0), "gpu_user_annotation", track, start, 9)

    kernels = [TraceEvent("nvjet_x", "kernel", "0/7", start, 5) for start in (1, 21)]
    found = attribute([mark(2, "0/20"), mark(0, "0/7"), mark(20, "0/7"), *kernels], RULES)
    assert found is not None and found.work is not None
    assert (found.work.steps, found.work.prefill_tokens) == (2, 200)
    assert _times(found) == {("GEMM", "prefill"): (10, 2)}


def test_phases_last_until_the_next_step() -> None:
    def step(start: float, *counts: int) -> TraceEvent:
        return TraceEvent(STEP.format(*counts), "user_annotation", "1/1", start, 5)

    events = [
        _op("aten::mm", 0, 1),
        step(10, 1, 512, 0, 0),
        _op("aten::mm", 11, 2),
        _op("aten::argmax", 18, 1),
        step(20, 1, 64, 2, 2),
        _op("aten::mm", 21, 4),
        step(30, 0, 0, 2, 2),
        _op("aten::mm", 31, 8),
    ]
    found = attribute(events, RULES)
    assert _times(found) == {
        ("GEMM", "before the first step"): (1, 1),
        ("GEMM", "prefill"): (2, 1),
        ("sampling", "prefill"): (1, 1),
        ("GEMM", "mixed"): (4, 1),
        ("GEMM", "decode"): (8, 1),
    }
    assert found is not None
    assert found.work == Work(
        steps=3, prefill_requests=2, prefill_tokens=576, decode_requests=4, decode_tokens=4
    )


def test_detailed_annotations_are_steps_too() -> None:
    name = "execute_514_context_1(sq512sk512sqsq262144sqsk262144)_generation_2(sq2sk90sqsq2sqsk90)"
    events = [TraceEvent(name, "user_annotation", "1/1", 0, 9), _op("aten::mm", 1, 2)]
    found = attribute(events, RULES)
    assert found is not None and found.work is not None
    assert (found.work.prefill_tokens, found.work.decode_tokens) == (512, 2)


def test_a_device_is_judged_by_its_kernels_and_never_by_the_host() -> None:
    flash = "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<int>>>(int)"
    events = [
        _op("vllm::unified_attention_with_output", 0, 1000),
        TraceEvent(flash, "kernel", "0/7", 5, 20),
        TraceEvent("nvjet_tst_128x64", "kernel", "0/7", 25, 30),
        TraceEvent("Memcpy HtoD", "gpu_memcpy", "0/8", 25, 3),
        TraceEvent("void at::native::vectorized_elementwise_kernel", "kernel", "0/7", 60, 1),
    ]
    found = attribute(events, RULES)
    assert found is not None and found.clock == "device"
    assert _times(found) == {
        ("attention", "all"): (20, 1),
        ("GEMM", "all"): (30, 1),
        ("memory copies", "all"): (3, 1),
        ("other", "all"): (1, 1),
    }


def test_a_trace_without_operators_says_nothing() -> None:
    assert attribute([TraceEvent("x", "user_annotation", "1/1", 0, 1)], RULES) is None


def _arm(time_us: float, prefill_tokens: int | None) -> Buckets:
    row = BucketTime(bucket="attention", phase="all", time_us=time_us, calls=4, top=())
    work = None
    if prefill_tokens is not None:
        work = Work(
            steps=2,
            prefill_requests=1,
            prefill_tokens=prefill_tokens,
            decode_requests=1,
            decode_tokens=1,
        )
    return Buckets(clock="cpu", rows=(row,), work=work)


def test_equal_tokens_make_a_ratio_and_unequal_ones_a_reason() -> None:
    baseline = join_ranks("baseline", [_arm(200, 512)])
    same = compare_buckets(baseline, join_ranks("candidate", [_arm(100, 512)]))
    assert (same.rows[0].ratio, same.refusal) == (0.5, None)
    other = compare_buckets(baseline, join_ranks("candidate", [_arm(100, 500)]))
    assert other.rows[0].ratio is None
    assert other.refusal is not None and "512" in other.refusal and "500" in other.refusal
    unknown = compare_buckets(baseline, join_ranks("candidate", [_arm(100, None)]))
    assert unknown.rows[0].ratio is None
    assert unknown.refusal is not None and "candidate" in unknown.refusal


def test_ranks_are_averaged_and_their_number_must_agree() -> None:
    two = join_ranks("candidate", [_arm(100, 512), _arm(300, 512)])
    assert (two.rows[0].time_us, two.rows[0].calls, two.ranks) == (200, 4, 2)
    compared = compare_buckets(join_ranks("baseline", [_arm(200, 512)]), two)
    assert compared.refusal == "1 ranks against 2"


def _steps(*counts: tuple[int, int]) -> Buckets:
    """One prefill step per (prefill, 0), one mixed step per (prefill, decode)."""
    events = []
    for at, (prefill, decode) in enumerate(counts):
        name = STEP.format(1, prefill, int(decode > 0), decode)
        events.append(TraceEvent(name, "user_annotation", "1/1", 10 * at, 5))
        events.append(_op("aten::mm", 10 * at, 5))
    found = attribute(events, RULES)
    assert found is not None
    return found


def test_a_phase_has_a_ratio_only_where_its_own_work_is_the_same() -> None:
    baseline = join_ranks("baseline", [_steps((512, 0), (512, 0), (64, 2))])
    candidate = join_ranks("candidate", [_steps((768, 0), (256, 0), (64, 2))])
    other = join_ranks("candidate", [_steps((512, 0), (512, 1), (64, 1))])
    same = compare_buckets(baseline, candidate, by_phase=True)
    assert all(row.ratio == 1.0 for row in same.rows)
    assert same.other_work == ()
    split = compare_buckets(baseline, other, by_phase=True)
    assert {row.phase: row.ratio for row in split.rows} == {
        "all": 1.0,
        "mixed": None,
        "prefill": None,
    }
    assert split.other_work == ("mixed", "prefill")


def test_ranks_that_serve_different_requests_add_up_to_the_work() -> None:
    parallel = join_ranks("baseline", [_steps((100, 0)), _steps((60, 0))])
    assert parallel.work is not None and parallel.work.prefill_tokens == 160
    assert parallel.work_by_phase["prefill"].prefill_tokens == 160
    refused = compare_buckets(parallel, join_ranks("candidate", [_steps((100, 0))] * 2))
    assert refused.refusal is not None and "160" in refused.refusal


def test_without_steps_by_phase_repeats_nothing() -> None:
    arm = join_ranks("baseline", [_arm(200, None)])
    assert len(compare_buckets(arm, by_phase=True).rows) == 1


def _event(name: str, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 1, "dur": 2, **more}


def _trace(events: list[Any], rank: int | None = None) -> str:
    head: dict[str, Any] = {"schemaVersion": 1}
    if rank is not None:
        head["distributedInfo"] = {"rank": rank}
    return json.dumps({**head, "traceEvents": events, "traceName": "x"}, indent=1)


def test_files_of_any_size_are_read_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hwtune.io.traces._CHUNK_CHARACTERS", 7)
    python = _event("sitecustomize.py(1): é", cat="python_function")
    path = tmp_path / "t.trace.json.gz"
    path.write_bytes(gzip.compress(_trace([python, _event("aten::mm", ts=12.5)]).encode()))
    arm = read_arm(path, "baseline")
    assert [(row.bucket, row.time_us) for row in arm.rows] == [("GEMM", 2.0)]


def test_a_directory_is_one_server_with_its_ranks(tmp_path: Path) -> None:
    for rank in (0, 1):
        text = _trace([_event("aten::mm", dur=2 + 2 * rank)], rank)
        (tmp_path / f"rank{rank}.1.pt.trace.json").write_text(text)
    frontend = _trace([_event("aten::mm", dur=90)])
    (tmp_path / "host_9.async_llm.1.pt.trace.json").write_text(frontend)
    arm = read_arm(tmp_path, "baseline")
    assert (arm.ranks, arm.rows[0].time_us) == (2, 3.0)
    (tmp_path / "rank1.2.pt.trace.json").write_text(_trace([_event("aten::mm")], 1))
    with pytest.raises(InputError, match="both of rank 1"):
        read_arm(tmp_path, "baseline")


def test_ranks_of_two_clocks_are_refused(tmp_path: Path) -> None:
    for rank, category in enumerate(("cpu_op", "kernel")):
        text = _trace([_event("aten::mm", cat=category)], rank)
        (tmp_path / f"rank{rank}.pt.trace.json").write_text(text)
    with pytest.raises(InputError, match="same activities"):
        read_arm(tmp_path, "baseline")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it ends in the middle"),
        (b"hello", "'{' expected"),
        (b"[" * 200_000, "not a whole trace"),
        (_trace([_event("aten::mm", dur=float("inf"))]).encode(), "inf is no time"),
        (_trace([_event("aten::mm", ts=float("nan"))]).encode(), "nan is no time"),
        (_trace([_event("aten::mm", ts=10**400)]).encode(), "not a whole trace"),
        (b"{}", "no operator and no kernel"),
        (_trace([_event("aten::mm")]).encode()[:-30], "not a whole trace"),
        (_trace([3]).encode(), "an event is not an object"),
        (_trace([{"ph": "X", "cat": "kernel"}]).encode(), "KeyError('name')"),
        (gzip.compress(_trace([_event("aten::mm")]).encode())[:-12], "cannot read the trace"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = tmp_path / "bad.trace.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_arm(path, "baseline")
    assert reason in str(caught.value) and str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
