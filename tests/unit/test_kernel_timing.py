"""When times of a kernel become a ratio, and when they do not."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from hwtune.domain.errors import UsageError
from hwtune.domain.kernel_timing import CallCase, CallError, Sample, judge_sample, possible_cases

CASE = CallCase(
    num_heads=24, num_kv_heads=4, head_size=256, page=832, batch=2, query=1, context=1000
)
FINE = CallError(max_abs=0.001, relative_l2=0.002)
FASTER = tuple((2.0e-4 + 1e-6 * n, 1.0e-4 + 1e-6 * (n % 3)) for n in range(8))


def _sample(pairs: tuple[tuple[float, float], ...] = FASTER, **changes: Any) -> Sample:
    sample = Sample(
        kernel="decode.cpu",
        baseline="vLLM",
        case=CASE,
        caches="warm",
        clock="wall time",
        pairs=pairs,
        ours_error=FINE,
        baseline_error=FINE,
        yardstick_error=FINE,
    )
    return replace(sample, **changes)


def test_a_right_kernel_gets_a_ratio_with_its_interval() -> None:
    row = judge_sample(_sample(), bandwidth_bytes_per_s=1e12)
    assert row.verdict == "faster"
    assert row.interval is not None and row.speed_up is not None
    assert 1.9 < row.interval[0] < row.speed_up < row.interval[1] < 2.1
    assert row.ours_us == pytest.approx(101.0)
    # 2 sequences x 1000 tokens x 4 KV heads x 256 x (K and V) x 2 bytes, and 2 rows in and out.
    moved = 2 * 1000 * 4 * 256 * 2 * 2 + 2 * 2 * 24 * 256 * 2
    assert row.gb_per_s == pytest.approx(moved / 101e-6 / 1e9)
    assert row.bandwidth_pct == pytest.approx(100 * moved / 101e-6 / 1e12)


def test_the_other_way_round_is_slower_and_equal_is_no_difference() -> None:
    assert judge_sample(_sample(tuple((b, a) for a, b in FASTER))).verdict == "slower"
    mixed = tuple((1e-4, 1e-4 * (1.1 if n % 2 else 0.9)) for n in range(10))
    assert judge_sample(_sample(mixed)).verdict == "no difference shown"


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        ({"ours_error": CallError(max_abs=0.5, relative_l2=0.02)}, "relative error 0.02"),
        ({"ours_error": CallError(max_abs=math.nan, relative_l2=math.nan)}, "not finite"),
        ({"ours_error": CallError(max_abs=math.inf, relative_l2=math.inf)}, "not finite"),
        ({"baseline_error": CallError(max_abs=1.0, relative_l2=0.9)}, "the baseline's own"),
        ({"baseline_error": CallError(max_abs=1.0, relative_l2=math.nan)}, "the baseline's own"),
    ],
)
def test_wrong_output_has_no_ratio_however_fast(errors: dict[str, CallError], reason: str) -> None:
    row = judge_sample(_sample(FASTER, **errors))
    assert row.verdict.startswith("no ratio") and reason in row.verdict
    assert (row.speed_up, row.interval, row.gb_per_s) == (None, None, None)


def test_the_yardstick_allows_what_bf16_probabilities_cost() -> None:
    ours = CallError(max_abs=0.002, relative_l2=0.006)
    assert judge_sample(_sample(ours_error=ours)).speed_up is None
    loose = replace(ours, relative_l2=0.004)
    assert judge_sample(_sample(ours_error=ours, yardstick_error=loose)).speed_up is not None


def test_few_pairs_decide_nothing_and_none_are_no_time() -> None:
    few = judge_sample(_sample(FASTER[:3]))
    assert few.interval is None and "at least 6" in few.verdict
    none = judge_sample(_sample(()))
    assert (none.verdict, none.ours_us, none.speed_up) == ("not timed", None, None)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"query": 0}, "--query 0"),
        ({"context": 0, "query": 1}, "--context 0"),
        ({"page": -1}, "--page -1"),
        ({"query": 2000}, "more new tokens than the --context 1000"),
    ],
)
def test_shapes_that_cannot_be(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        possible_cases([replace(CASE, **changes)])
