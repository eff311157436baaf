"""Saved results of vllm bench serve: judged as far as they carry evidence."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from hwtune.cli.ab_bench import app
from hwtune.domain.bench import Comparison
from hwtune.domain.errors import InputError, UsageError
from hwtune.domain.saved import compare_saved
from hwtune.io.saved_results import pair_results, read_side
from hwtune.report.bench import to_json, to_table


def _result(factor: float = 1.0, count: int = 20, **changes: Any) -> dict[str, Any]:
    """A detailed result whose latencies are ``factor`` times those of another."""
    rng = random.Random(int(factor * 1000))
    steps = [[0.02 * factor * rng.uniform(0.99, 1.01) for _ in range(15)] for _ in range(count)]
    result: dict[str, Any] = {
        "model_id": "m",
        "num_prompts": count,
        "max_concurrency": 1,
        "request_rate": 1.0,
        "endpoint_type": "openai",
        "completed": count,
        "failed": 0,
        "output_throughput": 50.0 / factor,
        "input_lens": [1000 + index for index in range(count)],
        "output_lens": [16] * count,
        "ttfts": [0.2 * factor * rng.uniform(0.99, 1.01) for _ in range(count)],
        "itls": steps,
        "errors": [""] * count,
        "generated_texts": [f"answer {index}" for index in range(count)],
    }
    return {**result, **changes}


def _compare(tmp_path: Path, first: dict[str, Any], second: dict[str, Any]) -> Comparison:
    for name, data in (("a", first), ("b", second)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result_4-8K.json").write_text(json.dumps(data))
    pairs, notes = pair_results(tmp_path / "a", tmp_path / "b")
    return compare_saved(pairs, margin=0.02, confidence=0.95, notes=notes)


def _verdicts(comparison: Comparison) -> dict[str, str]:
    return {result.metric.name: result.verdict.kind for result in comparison.tiers[0].metrics}


def test_a_clear_difference_is_judged_and_the_order_is_named(tmp_path: Path) -> None:
    comparison = _compare(tmp_path, _result(), _result(0.8))
    kinds = _verdicts(comparison)
    assert kinds.pop("output_throughput") == "inconclusive"
    assert set(kinds.values()) == {"faster"}
    assert comparison.tiers[0].metrics[0].ratio == pytest.approx(0.8, rel=0.02)
    assert any("one after the other" in note for note in comparison.notes)
    assert {g.state for g in comparison.gates} == {"not checked"}


ERRORS: dict[str, Any] = {
    "errors": ["Service Unavailable"] * 20,
    "ttfts": [0.0] * 20,
    "output_lens": [0] * 20,
    "completed": 0,
    "failed": 20,
}


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (_result(0.5, **ERRORS, itls=[[]] * 20), "20 of 20 requests failed (Service Unavailable)"),
        (_result(0.5, generated_texts=["!" * 64] * 20), "candidate 20 of 20 answers"),
        (_result(0.5, max_concurrency=32), "concurrency 1 / 32"),
        (_result(0.5, model_id="another"), "model 'm' / 'another'"),
        (_result(0.5, input_lens=[7] * 20), "prompts differ"),
        (_result(), "the same file"),
    ],
)
def test_a_trap_is_not_comparable(tmp_path: Path, second: dict[str, Any], reason: str) -> None:
    comparison = _compare(tmp_path, _result(), second)
    assert set(_verdicts(comparison).values()) == {"not comparable"}
    assert all(result.ratio is None for result in comparison.tiers[0].metrics)
    assert reason in comparison.tiers[0].metrics[0].verdict.text
    assert comparison.answer_is_no


def test_other_answer_lengths_void_whole_answers_and_not_the_first_token(tmp_path: Path) -> None:
    shorter = _result(0.8, output_lens=[8] * 20)
    kinds = _verdicts(_compare(tmp_path, _result(), shorter))
    assert kinds["e2el"] == kinds["output_throughput"] == "not comparable"
    assert kinds["ttft"] == "faster"


def test_three_prompts_are_too_few(tmp_path: Path) -> None:
    comparison = _compare(tmp_path, _result(count=3), _result(0.5, count=3))
    assert _verdicts(comparison)["ttft"] == "inconclusive"
    assert "needs 6 prompts, 3 more" in comparison.tiers[0].metrics[0].verdict.text


def test_an_outlier_is_named_and_widens_the_interval(tmp_path: Path) -> None:
    second = _result(0.98)
    second["ttfts"][4] = 20.0
    comparison = _compare(tmp_path, _result(), second)
    assert any("prompt 5 over 3 x" in line for line in comparison.tiers[0].drift)
    assert _verdicts(comparison)["ttft"] == "inconclusive"


def test_files_without_a_partner_are_named(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "result_8-16K.json").write_text(json.dumps(_result()))
    (tmp_path / "a" / "result_4-8K.json").write_text(json.dumps(_result()))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "result_4-8K.json").write_text(json.dumps(_result(0.9)))
    (tmp_path / "b" / "other.json").write_text(json.dumps(_result(0.9)))
    pairs, notes = pair_results(tmp_path / "a", tmp_path / "b")
    assert [name for name, _, _ in pairs] == ["4-8K"]
    assert notes == ["8-16K: only on one side, left out", "other: only on one side, left out"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "JSON"),
        ("[]", "not a result"),
        ('{"completed": 3}', "--save-detailed"),
        (json.dumps(_result(ttfts=[0.1])), "damaged details"),
        (json.dumps(_result(itls=[[None]] * 20)), "damaged details"),
        ("[" * 100_000, "JSON"),
        (json.dumps(_result(ttfts=[float("nan")] * 20)), "ttfts.1.: expected a finite number"),
        (json.dumps(_result(ttfts=[float("inf")] * 20)), "ttfts.1.: expected a finite number"),
        (json.dumps(_result(ttfts=[-0.1] * 20)), "ttfts.1. is -0.1"),
        (json.dumps(_result(ttfts=[0.0] * 20)), "ttfts.1. is 0.0"),
        (json.dumps(_result(ttfts=[10**400] * 20)), "not a huge number"),
        (json.dumps(_result(itls=[[0.1, -0.1]] * 20)), "itls.1. holds -0.1"),
        (json.dumps(_result(itls=[[]] * 20)), "no time for 16 tokens"),
        (json.dumps(_result(output_lens=[0] * 20)), "without an error"),
        (json.dumps(_result(input_lens=[float("inf")] * 20)), "input_lens.1. is no number"),
        (json.dumps(_result(generated_texts=[7] * 20)), "generated_texts.1. is no text"),
        (json.dumps(_result(completed=19)), "`completed` is 19, the rows say 20"),
        (json.dumps(_result(failed=1)), "`failed` is 1, the rows say 0"),
        (json.dumps(_result(output_throughput=float("nan"))), "output_throughput"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_side(path)


def _invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["compare", *arguments])


def test_the_command_exits_with_the_answer(tmp_path: Path) -> None:
    for name, factor in (("a", 1.0), ("b", 0.8), ("c", 1.25)):
        (tmp_path / f"{name}.json").write_text(json.dumps(_result(factor)))
    assert _invoke(str(tmp_path / "a.json"), str(tmp_path / "b.json")).exit_code == 0
    slower = _invoke(str(tmp_path / "a.json"), str(tmp_path / "c.json"))
    assert slower.exit_code == 1 and "slower" in slower.stdout


def test_paths_that_do_not_fit_are_bad_input(tmp_path: Path) -> None:
    for arguments in ([str(tmp_path / "x"), str(tmp_path)], [str(tmp_path), str(tmp_path)]):
        assert isinstance(_invoke(*arguments).exception, InputError)
    assert isinstance(_invoke(str(tmp_path)).exception, InputError)


@pytest.mark.parametrize(("margin", "confidence"), [(0.0, 0.95), (0.02, 1.0), (0.02, float("nan"))])
def test_levels_out_of_range_are_named(tmp_path: Path, margin: float, confidence: float) -> None:
    (tmp_path / "a.json").write_text(json.dumps(_result()))
    (run,) = read_side(tmp_path / "a.json").values()
    with pytest.raises(UsageError, match="--margin"):
        compare_saved([("t", run, run)], margin=margin, confidence=confidence)


def test_json_of_saved_runs_speaks_of_prompts_and_holds_no_nan(tmp_path: Path) -> None:
    comparison = _compare(tmp_path, _result(), _result(0.8))
    text = to_json(replace(comparison, margin=float("nan")))
    data = json.loads(text)
    assert "NaN" not in text and data["margin"] is None
    metric = data["tiers"][0]["metrics"][0]
    assert metric["prompts"] == 20 and "blocks" not in metric and "more_prompts" in metric


def test_a_gate_that_was_not_checked_is_not_shown_as_ok(tmp_path: Path) -> None:
    texts: dict[str, Any] = {"generated_texts": []}
    shown = to_table(_compare(tmp_path, _result(**texts), _result(0.8, **texts)))
    assert "not checked  4-8K: sane output" in shown
    assert "over all tiers, per metric" in shown
