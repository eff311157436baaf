"""Amdahl's law over predicted shares, and how sweeps find where a hit rate falls."""

from __future__ import annotations

import pytest

from hwtune.domain.errors import UsageError
from hwtune.domain.scheduler.attention_work import Work
from hwtune.domain.scheduler.prediction import Forecast, KernelForecast
from hwtune.domain.scheduler.speedup import (
    Measured,
    expected_change,
    parse_measured,
    parse_ratios,
    parse_share,
)
from hwtune.domain.scheduler.sweep import first_below, parse_sweep, settings


def forecast(flops: int, read: int) -> Forecast:
    kernel = KernelForecast(
        name="vendor_prefill",
        phase="prefill",
        hit_steps=1,
        eligible_steps=2,
        eligible_hits=1,
        fallbacks={},
        eligible_fallbacks={},
        work=Work(1, 10, flops, read),
    )
    return Forecast(
        work=Work(4, 40, 100, 100), prefill_steps=2, mixed_steps=0, kernels=(kernel,), paths={}
    )


def exact(value: float) -> Measured:
    return Measured(value=value, low=value, high=value)


def test_the_whole_of_attention_at_twice_the_speed() -> None:
    change = expected_change(forecast(100, 100), {"vendor_prefill": exact(2.0)}, exact(0.5))
    # Half of the time halves: 0.75 of it is left.
    assert change.low_pct == change.high_pct == pytest.approx(100 / 3)


def test_the_interval_spans_both_bases_and_all_corners() -> None:
    ratio = Measured(value=2.0, low=1.5, high=3.0)
    share = Measured(value=0.4, low=0.3, high=0.5)
    change = expected_change(forecast(80, 20), {"vendor_prefill": ratio}, share)
    assert change.low_pct == pytest.approx(100 * (1 / (1 - 0.3 * 0.2 * (1 - 1 / 1.5)) - 1))
    assert change.high_pct == pytest.approx(100 * (1 / (1 - 0.5 * 0.8 * (1 - 1 / 3.0)) - 1))
    assert change.by_flops_pct == pytest.approx(100 * (1 / (1 - 0.4 * 0.8 * 0.5) - 1))
    assert change.low_pct < change.by_bytes_pct < change.by_flops_pct < change.high_pct


def test_a_slower_kernel_costs() -> None:
    change = expected_change(forecast(100, 50), {"vendor_prefill": exact(0.5)}, exact(0.5))
    assert change.low_pct < change.high_pct < 0


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "nan", "inf", "1,2", "2,3,4", "1,2,0.5"])
def test_bad_measurements_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_measured("--kernel-ratio", text)


def test_ratios_name_a_kernel_of_the_profile() -> None:
    known = ("vendor_prefill",)
    found = parse_ratios(["vendor_prefill=2.8,2.75,2.92"], known)
    assert found == {"vendor_prefill": Measured(value=2.8, low=2.75, high=2.92)}
    with pytest.raises(UsageError, match="vendor_prefill"):
        parse_ratios(["other=2"], known)
    with pytest.raises(UsageError, match="at most 1"):
        parse_share("--attention-share", "35")


def test_sweeps_combine_their_axes() -> None:
    axes = parse_sweep(["concurrency=2,1", "page=832"])
    assert settings(axes) == ({"concurrency": 1, "page": 832}, {"concurrency": 2, "page": 832})


@pytest.mark.parametrize(
    "text", ["concurrency", "concurrency=", "concurrency=0", "speed=1", "page=a"]
)
def test_bad_sweeps_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_sweep([text])


def test_the_gap_between_swept_values_is_closed() -> None:
    asked: list[int] = []

    def rate(value: int) -> float:
        asked.append(value)
        return 1.0 if value < 6 else 0.2

    assert first_below([1, 4, 16], rate, 0.5) == 6
    assert len(asked) < 10
    assert first_below([1, 2], rate, 0.5) is None
    assert first_below([8, 16], rate, 0.5) == 8
