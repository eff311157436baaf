"""Results of aiperf, guidellm and our own runs; and runs whose drift looks like a difference."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from hwtune.domain.bench import Comparison
from hwtune.domain.errors import InputError
from hwtune.domain.saved import compare_saved
from hwtune.io.saved_results import pair_results, read_side

COUNT = 16


def _times(factor: float, seed: int = 1) -> list[tuple[float, float]]:
    """TTFT and the time after it, in seconds."""
    rng = random.Random(seed)
    return [
        (0.2 * factor * rng.uniform(0.99, 1.01), 0.3 * factor * rng.uniform(0.99, 1.01))
        for _ in range(COUNT)
    ]


def _aiperf(folder: Path, factor: float = 1.0, failed: int = 0, concurrency: int = 2) -> Path:
    """An artifact directory as aiperf 0.13 leaves it; lines stand in the order of completion."""
    lines = [{"metadata": {"session_num": 0, "benchmark_phase": "warmup"}, "metrics": {}}]
    for number, (ttft, rest) in enumerate(_times(factor, int(factor * 100))):
        start = 1_796_031_392_752_582_934 + number * 10**9
        record: dict[str, Any] = {
            "metadata": {
                "session_num": number,
                "turn_index": 0,
                "request_start_ns": start,
                "request_end_ns": start + int((ttft + rest) * 1e9),
                "benchmark_phase": "profiling",
                "was_cancelled": False,
            },
            "metrics": {
                "time_to_first_token": {"value": ttft * 1e3, "unit": "ms"},
                "request_latency": {"value": (ttft + rest) * 1e3, "unit": "ms"},
                "output_sequence_length": {"value": 31, "unit": "tokens"},
                "usage_completion_tokens": {"value": 32, "unit": "tokens"},
                "usage_prompt_tokens": {"value": 100 + number, "unit": "tokens"},
                "inter_token_latency": {"value": 1.0, "unit": "ms"},
            },
        }
        if number < failed:
            record["metrics"] = {"error_isl": {"value": 33, "unit": "tokens"}}
            record["error"] = {"code": 500, "type": "x", "message": "boom"}
        lines.append(record)
    random.Random(3).shuffle(lines)
    folder.mkdir(parents=True)
    (folder / "profile_export.jsonl").write_text("\n".join(map(json.dumps, lines)))
    summary = {
        "request_latency": {"unit": "ms", "avg": 1.0},
        "input_config": {
            "models": {"items": [{"name": "m"}]},
            "endpoint": {"type": "completions"},
            "phases": [{"name": "profiling", "type": "concurrency", "concurrency": concurrency}],
        },
    }
    (folder / "profile_export_aiperf.json").write_text(json.dumps(summary))
    return folder


def _guidellm(path: Path, factor: float = 1.0, failed: int = 0, old: bool = False) -> Path:
    """A report as guidellm 0.8 (or 0.3) writes it, with two benchmarks, in order of completion."""
    benchmarks = []
    for streams in (1, 2):
        answered = []
        for number, (ttft, rest) in enumerate(_times(factor * streams, int(factor * 100))):
            start = 1_796_031_452.5 + number
            item: dict[str, Any] = {
                "output": f"answer {number}",
                "prompt_tokens": 100 + number,
                "output_tokens": 32,
                "time_to_first_token_ms": ttft * 1e3,
                "time_per_output_token_ms": 99.0,
            }
            if old:
                item |= {"prompt": f"prompt {number}", "start_time": start}
                item |= {"last_token_time": start + ttft + rest}
            else:
                body = {"body": {"prompt": f"prompt {number}"}}
                item |= {"request_start_time": start, "request_args": json.dumps(body)}
                item |= {"info": {"timings": {"last_token_iteration": start + ttft + rest}}}
            answered.append(item)
        errored = [{"info": {"error": "boom"}, "output_tokens": None} for _ in range(failed)]
        random.Random(streams).shuffle(answered)
        strategy = {"type_": "concurrent", "streams": streams}
        config: dict[str, Any] = {"strategy": strategy, "backend": {"model": "m"}}
        benchmarks.append(
            {
                **({"args": {"strategy": strategy}} if old else {"config": config}),
                "worker": {"backend_model": "m"},
                "requests": {"successful": answered, "errored": errored, "incomplete": []},
                "start_time": 1_796_031_452.5,
                "end_time": 1_796_031_472.5,
            }
        )
    path.write_text(json.dumps({"metadata": {"version": 2}, "benchmarks": benchmarks}))
    return path


def _compare(first: Path, second: Path) -> Comparison:
    pairs, notes = pair_results(first, second)
    return compare_saved(pairs, margin=0.02, confidence=0.95, notes=notes)


def _kinds(comparison: Comparison, tier: int = 0) -> dict[str, str]:
    return {r.metric.name: r.verdict.kind for r in comparison.tiers[tier].metrics}


def test_two_aiperf_runs_pair_by_their_prompts_and_count_the_servers_tokens(
    tmp_path: Path,
) -> None:
    comparison = _compare(_aiperf(tmp_path / "a"), _aiperf(tmp_path / "b", 0.8))
    assert _kinds(comparison) == {
        "ttft": "faster",
        "tpot": "faster",
        "e2el": "faster",
        "output_throughput": "inconclusive",
    }
    (tier,) = comparison.tiers
    assert tier.prompts == COUNT and tier.prompt_tokens == (100, 100 + COUNT - 1)
    tpot = tier.metrics[1]
    assert tpot.baseline == pytest.approx(300 / 31, rel=0.02), "32 tokens by usage, not 31"
    assert comparison.model == "m"


@pytest.mark.parametrize("old", [False, True])
def test_every_benchmark_of_a_guidellm_report_is_a_tier(tmp_path: Path, old: bool) -> None:
    first = _guidellm(tmp_path / "a.json", old=old)
    comparison = _compare(first, _guidellm(tmp_path / "b.json", 1.25, old=old))
    assert [tier.tier for tier in comparison.tiers] == ["concurrent 1", "concurrent 2"]
    for number in (0, 1):
        assert _kinds(comparison, number)["ttft"] == "slower"
        tier = comparison.tiers[number]
        assert tier.text_agreement == 1.0, "paired by prompt, whatever the order"
        assert not [gate for gate in tier.gates if gate.state == "failed"]
    assert comparison.tiers[0].metrics[1].baseline == pytest.approx(300 / 31, rel=0.02)


@pytest.mark.parametrize("client", ["aiperf", "guidellm"])
def test_a_failed_request_of_another_client_is_a_failure_with_its_reason(
    tmp_path: Path, client: str
) -> None:
    make = _aiperf if client == "aiperf" else _guidellm
    comparison = _compare(make(tmp_path / "a.json"), make(tmp_path / "b.json", 0.5, failed=3))
    assert set(_kinds(comparison).values()) == {"not comparable"}
    assert "3 of" in comparison.tiers[0].metrics[0].verdict.text
    assert "boom" in comparison.tiers[0].metrics[0].verdict.text


def test_other_conditions_and_other_clients_are_not_comparable(tmp_path: Path) -> None:
    first = _aiperf(tmp_path / "a")
    other = _compare(first, _aiperf(tmp_path / "b", 0.5, concurrency=32))
    assert "concurrency 2 / 32" in other.tiers[0].metrics[0].verdict.text
    report = json.loads(_guidellm(tmp_path / "c.json").read_text())
    report["benchmarks"] = report["benchmarks"][:1]
    (tmp_path / "c.json").write_text(json.dumps(report))
    mixed = _compare(first, tmp_path / "c.json")
    assert "client 'aiperf' / 'guidellm'" in mixed.tiers[0].metrics[0].verdict.text


def test_directories_of_aiperf_runs_pair_by_name(tmp_path: Path) -> None:
    for side, factor in (("a", 1.0), ("b", 1.5)):
        for name in ("m-concurrency1", "m-concurrency2"):
            _aiperf(tmp_path / side / name, factor)
    comparison = _compare(tmp_path / "a", tmp_path / "b")
    assert [tier.tier for tier in comparison.tiers] == ["m-concurrency1", "m-concurrency2"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.json", '{"input_config": {}, "request_latency": {}}', "profile_export.jsonl"),
        ("x.jsonl", '{"metadata": {}, "metrics": {}}\n{"metadata": {}, "metrics": {}}', "missing"),
        ("x.json", '{"benchmarks": [{"requests": {}}]}', "missing"),
        ("x.json", '{"benchmarks": [7]}', "x.json"),
        ("x.json", "[]", "not a result of"),
        ("x.json", '{"completed": 1}\n{"other": 2}', "not a result of"),
    ],
)
def test_what_is_no_result_is_one_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_side(tmp_path / name)
    assert "\n" not in str(caught.value)


def _vllm(path: Path, started_s: float, per_request: float, factor: float = 1.0) -> Path:
    """A detailed result whose server slows down by ``per_request`` from one request to the next."""
    rng = random.Random(path.name)
    slow = [factor * (1 + per_request * (started_s + k)) for k in range(COUNT)]
    result = {
        "date": f"20260709-19{10 + int(started_s + COUNT) // 60}{int(started_s + COUNT) % 60:02d}",
        "duration": float(COUNT),
        "model_id": "m",
        "num_prompts": COUNT,
        "completed": COUNT,
        "start_times": [1000.0 + k for k in range(COUNT)],
        "input_lens": [1000] * COUNT,
        "output_lens": [16] * COUNT,
        "ttfts": [0.2 * s * rng.uniform(0.995, 1.005) for s in slow],
        "itls": [[0.02 * s * rng.uniform(0.995, 1.005) for _ in range(15)] for s in slow],
        "errors": [""] * COUNT,
        "generated_texts": [f"answer {k}" for k in range(COUNT)],
    }
    path.write_text(json.dumps(result))
    return path


def test_aaa_bbb_on_a_server_that_slows_down_claims_nothing(tmp_path: Path) -> None:
    first = _vllm(tmp_path / "a.json", 0, 0.02)
    comparison = _compare(first, _vllm(tmp_path / "b.json", COUNT, 0.02))
    (tier,) = comparison.tiers
    assert tier.metrics[0].ratio is not None and tier.metrics[0].ratio > 1.2
    kinds = _kinds(comparison)
    assert {kinds[name] for name in ("ttft", "tpot", "e2el")} == {"inconclusive"}
    assert "the drift inside them alone would show +" in tier.metrics[0].verdict.text
    assert any(line.startswith("drift: baseline TTFT +") for line in tier.drift)


def test_a_difference_that_no_drift_explains_is_still_one(tmp_path: Path) -> None:
    first = _vllm(tmp_path / "a.json", 0, 0.0)
    steady = _compare(first, _vllm(tmp_path / "b.json", COUNT, 0.0, factor=1.3))
    assert _kinds(steady)["ttft"] == "slower" and steady.tiers[0].drift == ()
    first = _vllm(tmp_path / "c.json", 0, 0.02)
    against = _compare(first, _vllm(tmp_path / "d.json", COUNT, 0.02, factor=0.5))
    assert _kinds(against)["ttft"] == "faster", "the drift went the other way"


def test_one_outlier_of_three_prompts_is_named(tmp_path: Path) -> None:
    for name, far in (("a", 1.0), ("b", 9.0)):
        data = {
            "model_id": "m",
            "num_prompts": 3,
            "completed": 3,
            "input_lens": [10, 11, 12],
            "output_lens": [4, 4, 4],
            "ttfts": [0.1, 0.1 * far, 0.1],
            "itls": [[0.01] * 3] * 3,
            "errors": ["", "", ""],
            "label": name,
        }
        (tmp_path / f"{name}.json").write_text(json.dumps(data))
    (tier,) = _compare(tmp_path / "a.json", tmp_path / "b.json").tiers
    assert any(line.startswith("outliers: TTFT of prompt 2 over 3 x") for line in tier.drift)
