"""The self-test must be able to fail."""

from __future__ import annotations

import pytest

from hwtune.adapters.load.self_test import check_faults
from hwtune.domain.bench import RequestRecord
from hwtune.domain.client_check import Truth, check_client, quantile

TRUTH = Truth(ttft_s=0.2, tpot_s=0.02, output_tokens=64)


def _records(
    count: int, *, late_s: float = 0.0, last_late_s: float = 0.0, failed: int = 0
) -> list[RequestRecord]:
    """The client reads the first token ``late_s`` and the last ``last_late_s`` after it came."""
    return [
        RequestRecord(
            arm="baseline",
            phase="measured",
            tier="t",
            pair=0,
            prompt=index,
            prompt_id="p",
            started_unix_s=100.0,
            ended_unix_s=100.0 + TRUTH.e2el_s + last_late_s,
            ttft_s=0.2 + late_s,
            e2el_s=TRUTH.e2el_s + last_late_s,
            output_tokens=64,
            text=f" {100.2:.6f} {100.0 + TRUTH.e2el_s:.6f}",
            failure="timeout" if index < failed else None,
        )
        for index in range(count)
    ]


def test_a_true_client_passes() -> None:
    check = check_client(8, _records(8), TRUTH, cpu_s=0.1)
    assert check.passed
    assert check.ttft.mean_error == pytest.approx(0, abs=1e-6)
    assert check.delivered == pytest.approx(1)


@pytest.mark.parametrize(
    ("records", "problem"),
    [
        (_records(8, late_s=0.005), "TTFT mean"),
        (_records(8, late_s=0.05), "TTFT p99"),
        (_records(8, last_late_s=0.02), "TPOT mean"),
        (_records(8, last_late_s=0.1), "delivered tokens"),
        (_records(8, failed=1), "1 requests failed"),
    ],
)
def test_a_late_client_is_named(records: list[RequestRecord], problem: str) -> None:
    assert problem in check_client(8, records, TRUTH, cpu_s=0.1).problems


def test_nothing_but_failures_is_no_result() -> None:
    with pytest.raises(ValueError, match="no request succeeded"):
        check_client(2, _records(2, failed=2), TRUTH, cpu_s=0.1)


def test_a_tail_is_a_value_that_was_seen() -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.99) == 4.0
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0


def test_every_fault_is_recognised() -> None:
    assert check_faults() == []
