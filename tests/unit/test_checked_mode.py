"""Checked mode: what is accepted, what is recorded, and the verdict over it."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from hwtune.domain.check_numbers import number_checks
from hwtune.domain.check_records import Check
from hwtune.domain.checking import Difference, KernelCheck, refusal, tolerance_for
from hwtune.domain.errors import UsageError
from hwtune.domain.evidence import Evidence, KernelCount
from hwtune.domain.markers import check
from hwtune.io.check_slots import CHECKS_DIRECTORY, CheckFile, read_checks
from hwtune.io.marker_reports import report_to_dict
from tests.unit.test_planning import plan

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"


def difference(relative: float, absolute: float = 0.1, non_finite: int = 0) -> Difference:
    return Difference(absolute=absolute, relative=relative, non_finite=non_finite)


def test_the_tolerance_follows_the_coarsest_format_on_the_way() -> None:
    assert tolerance_for("bfloat16", "auto") == pytest.approx(0.0195, abs=1e-4)
    assert tolerance_for("float16", "float16") == pytest.approx(0.00244, abs=1e-5)
    assert tolerance_for("bfloat16", "fp8_e4m3") == 0.15


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (difference(0.02), None),
        (difference(0.021), "relative error 0.021 above 0.02"),
        (difference(float("nan")), "relative error nan above 0.02"),
        (difference(0.0, non_finite=3), "3 elements are NaN or Inf on one side only"),
    ],
)
def test_what_is_refused_and_why(found: Difference, reason: str | None) -> None:
    assert refusal(found, 0.02) == reason


def nothing(reason: str) -> None:
    raise AssertionError(reason)


def test_the_worst_call_of_each_kernel_and_layer_is_kept(tmp_path: Path) -> None:
    file = CheckFile(tmp_path, "n", nothing)
    row = file.row("page_decode", "layers.3", 0.02)
    file.row("page_decode", "layers.7", 0.02)
    row.record(difference(0.001, 0.5), 1, 900, failed=False)
    row.record(difference(0.3, 0.2, non_finite=4), 1, 901, failed=True)
    row.record(difference(0.002, 0.1), 1, 902, failed=False)
    first, second = read_checks(tmp_path)
    assert first == KernelCheck(
        process=os.getpid(),
        nonce="n",
        kernel="page_decode",
        layer="layers.3",
        tolerance=0.02,
        checked=3,
        failed=1,
        non_finite=4,
        worst_absolute=0.5,
        worst_relative=0.3,
        worst_query_len=1,
        worst_context_len=901,
    )
    assert (second.layer, second.checked) == ("layers.7", 0)


def test_layers_beyond_what_fits_are_compared_and_said_to_be_lost(tmp_path: Path) -> None:
    said: list[str] = []
    file = CheckFile(tmp_path, "n", said.append)
    for number in range(3000):
        file.row("k", f"layer {number:0150}", 0.02).record(difference(0.1), 1, 1, failed=False)
    assert len(said) == 1
    assert "no room" in said[0]
    assert all(row.checked == 1 for row in read_checks(tmp_path))


def test_without_checked_mode_nothing_is_recorded(tmp_path: Path) -> None:
    assert read_checks(tmp_path) == ()
    assert not (tmp_path / CHECKS_DIRECTORY).exists()


def row(relative: float, *, failed: int = 0, checked: int = 9, layer: str = "l1") -> KernelCheck:
    return KernelCheck(
        process=1,
        nonce="n",
        kernel="page_decode",
        layer=layer,
        tolerance=0.02,
        checked=checked,
        failed=failed,
        non_finite=0,
        worst_absolute=0.25,
        worst_relative=relative,
        worst_query_len=1,
        worst_context_len=900,
    )


def verdicts(*rows: KernelCheck, rate: float = 1.0, **counts: int) -> dict[str, Check]:
    checked = dataclasses.replace(plan(), checked_rate=rate)
    counted: tuple[Any, ...] = tuple(
        KernelCount(process=1, nonce="n", kernel="page_decode", outcome=o, reason="", calls=c)  # type: ignore[arg-type]
        for o, c in counts.items()
    )
    evidence = Evidence(plan=checked, kernel_checks=rows, counts=counted)
    return {check.name: check for check in number_checks(evidence)}


def test_a_kernel_within_the_tolerance_passes_and_shows_its_worst_call() -> None:
    found = verdicts(row(0.004), row(0.011, layer="l2"))["numbers:page_decode"]
    assert found.status == "passed"
    assert "18 calls in 2 layers compared, worst relative error 0.011" in found.seen
    assert "l2, query 1, context 900" in found.seen


def test_one_call_that_differs_fails_the_server() -> None:
    found = verdicts(row(0.004), row(0.5, failed=1, layer="l2"))["numbers:page_decode"]
    assert found.status == "failed"
    assert "page_decode differed from vLLM's own path in 1 of 18 calls" in found.reason
    assert "the requests got vLLM's own output" in found.reason


def test_a_kernel_without_a_compared_call_is_said_to_be_unproven() -> None:
    assert verdicts()["numbers:page_decode"].reason == "no hit to compare yet"
    assert "--enforce-eager" in verdicts(captured=3)["numbers:page_decode"].reason
    lost = verdicts(hit=3)["numbers:page_decode"]
    assert (lost.status, lost.reason) == ("failed", "3 hits and no record of a comparison")


def test_an_unchecked_server_is_not_asked() -> None:
    assert verdicts(rate=0.0) == {}


def test_checking_the_baseline_is_refused() -> None:
    with pytest.raises(UsageError, match="--arm baseline runs none"):
        plan(arm="baseline", checked_rate=1.0)


@pytest.mark.parametrize(
    ("profile", "why"), [("ascend-910b", "has no kernels"), ("sm_90", "page_decode will not run")]
)
def test_checking_a_server_that_runs_no_kernel_is_refused(profile: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"nothing to compare: .*{why}"):
        plan(profile, checked_rate=1.0)


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_share_is_between_nothing_and_all(rate: float) -> None:
    with pytest.raises(UsageError, match="from 0 to 1"):
        plan(checked_rate=rate)


def test_graphs_are_not_compared_and_the_plan_says_so() -> None:
    gpu = plan("sm_90", checked_rate=0.5, available=lambda name: True)
    assert any("--enforce-eager" in note for note in gpu.notes)
    assert not any("--enforce-eager" in note for note in plan(checked_rate=0.5).notes)


def test_the_json_report_has_what_its_schema_requires() -> None:
    evidence = Evidence(
        plan=dataclasses.replace(plan(), checked_rate=1.0), kernel_checks=(row(0.1),)
    )
    report = report_to_dict(check(evidence, None, require_kernel_hits=False), evidence)
    schema = json.loads((SCHEMAS / "marker-report.json").read_text(encoding="utf-8"))
    assert list(report["numbers"][0]) == schema["$defs"]["numbers"]["required"]
