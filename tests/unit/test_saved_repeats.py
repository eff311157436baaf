"""Saved runs: repetitions, appended results, and what a single run per arm cannot tell."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hwtune.domain.bench import Comparison
from hwtune.domain.errors import InputError
from hwtune.domain.saved import compare_saved
from hwtune.domain.saved_run import SavedRequest, SavedRun
from hwtune.io.saved_results import pair_results

COUNT = 16


def _vllm(factor: float = 1.0, seed: str = "", **changes: Any) -> dict[str, Any]:
    """A detailed result, every latency ``factor`` times the usual within half a per cent."""
    rng = random.Random(f"{factor}/{seed}")
    result = {
        "model_id": "m",
        "num_prompts": COUNT,
        "max_concurrency": 1,
        "request_rate": "inf",
        "completed": COUNT,
        "input_lens": [1000] * COUNT,
        "output_lens": [16] * COUNT,
        "ttfts": [0.2 * factor * rng.uniform(0.995, 1.005) for _ in range(COUNT)],
        "itls": [[0.02 * factor * rng.uniform(0.995, 1.005)] * 15 for _ in range(COUNT)],
        "errors": [""] * COUNT,
        "generated_texts": [f"answer {k}" for k in range(COUNT)],
    }
    return result | changes


def _save(path: Path, *results: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, results)))
    return path


def _repetitions(folder: Path, factors: list[float], starts_s: list[int] | None = None) -> Path:
    for number, factor in enumerate(factors):
        dates = {}
        if starts_s is not None:
            minutes, seconds = divmod(starts_s[number], 60)
            dates = {"date": f"20260709-10{minutes:02d}{seconds:02d}", "duration": 10.0}
        result = _vllm(factor, f"{folder.name}{number}", **dates)
        _save(folder / f"result_4-8K_rep{number + 1}.json", result)
    return folder


def _compare(first: Path, second: Path) -> Comparison:
    pairs, notes = pair_results(first, second)
    return compare_saved(pairs, margin=0.02, confidence=0.95, notes=notes)


def _kinds(comparison: Comparison, tier: int = 0) -> dict[str, str]:
    return {r.metric.name: r.verdict.kind for r in comparison.tiers[tier].metrics}


def _text(comparison: Comparison, metric: int = 0) -> str:
    return comparison.tiers[0].metrics[metric].verdict.text


def test_repetitions_are_one_run_with_the_mean_of_each_prompt(tmp_path: Path) -> None:
    first = _repetitions(tmp_path / "a", [0.9, 1.0, 1.1])
    single = _save(tmp_path / "result_4-8K.json", _vllm(1.3))
    comparison = _compare(first, single)
    (tier,) = comparison.tiers
    assert tier.tier == "4-8K" and tier.prompts == COUNT
    assert tier.metrics[0].ratio == pytest.approx(1.3, rel=0.01)
    assert "4-8K: the mean per prompt of 3 repetitions" in comparison.notes
    data = json.loads((first / "result_4-8K_rep2.json").read_text())
    data |= {"errors": ["boom", *data["errors"][1:]], "completed": COUNT - 1}
    _save(first / "result_4-8K_rep2.json", data)
    assert "1 of 16 requests failed (boom)" in _text(_compare(first, single))
    data["num_prompts"] = 7
    _save(first / "result_4-8K_rep2.json", data)
    with pytest.raises(InputError, match="4-8K: its repetitions differ in workload"):
        _compare(first, single)


def test_runs_that_differ_among_themselves_decide_nothing(tmp_path: Path) -> None:
    """Every prompt of a run shares its luck: 16 equal prompts are not 16 observations of it."""
    first = _repetitions(tmp_path / "a", [0.94, 1.0, 1.06])
    comparison = _compare(first, _repetitions(tmp_path / "b", [0.98, 1.03, 1.12]))
    assert {_kinds(comparison)[name] for name in ("ttft", "tpot", "e2el")} == {"inconclusive"}
    assert "repetitions of an arm differ from each other as the arms do" in _text(comparison)
    steady = _repetitions(tmp_path / "c", [1.0, 1.002, 0.998])
    assert _kinds(_compare(steady, _repetitions(tmp_path / "d", [1.1, 1.103, 1.098])))["ttft"] == (
        "slower"
    )


def test_aaa_bbb_of_repetitions_that_slow_down_claims_nothing(tmp_path: Path) -> None:
    slowing = [1.0, 1.05, 1.1, 1.15, 1.2, 1.25]
    starts_s = [0, 60, 120, 180, 240, 300]
    first = _repetitions(tmp_path / "a", slowing[:3], starts_s[:3])
    sequential = _compare(first, _repetitions(tmp_path / "b", slowing[3:], starts_s[3:]))
    assert _kinds(sequential)["ttft"] == "inconclusive"
    assert "the drift inside them alone would show +" in _text(sequential)
    # The same levels one after the other in time, but between runs that do not drift.
    steady = _repetitions(tmp_path / "c", [1.0, 1.004, 1.0], starts_s[:3])
    later = _repetitions(tmp_path / "d", [1.15, 1.146, 1.15], starts_s[3:])
    assert _kinds(_compare(steady, later))["ttft"] == "slower"


def test_a_broken_repetition_does_not_hide_behind_the_first(tmp_path: Path) -> None:
    first = _repetitions(tmp_path / "a", [1.0, 1.001])
    second = _repetitions(tmp_path / "b", [0.5, 0.501])
    assert _kinds(_compare(first, second))["ttft"] == "faster"
    broken = _vllm(0.501, "broken", generated_texts=["!" * 60] * COUNT)
    _save(second / "result_4-8K_rep2.json", broken)
    assert "sane output" in _text(_compare(first, second))


def test_copies_are_no_runs_of_their_own(tmp_path: Path) -> None:
    first = _save(tmp_path / "a.json", _vllm())
    copy = _save(tmp_path / "b.json", _vllm(date="20260709-101010"))
    assert "two runs" in _text(_compare(first, copy)) and "copies" in _text(_compare(first, copy))
    folder = _repetitions(tmp_path / "c", [1.2, 1.21])
    _save(folder / "result_4-8K_rep3.json", _vllm(1.2, "c0"))
    assert "result_4-8K_rep3.json are the same file" in _text(_compare(first, folder))


def test_appended_results_are_tiers_or_repetitions(tmp_path: Path) -> None:
    """Whatever the files are called: the same workload is the same tier."""
    for name, factor in (("old", 1.0), ("new", 1.5)):
        rates = [_vllm(factor, str(rate), request_rate=rate) for rate in (1.0, 2.0)]
        _save(tmp_path / f"{name}-rates.jsonl", *rates)
        _save(tmp_path / f"{name}-runs.jsonl", *(_vllm(factor, str(k)) for k in range(3)))
    rates_compared = _compare(tmp_path / "old-rates.jsonl", tmp_path / "new-rates.jsonl")
    assert [tier.tier for tier in rates_compared.tiers] == ["old-rates#1", "old-rates#2"]
    assert [_kinds(rates_compared, k)["ttft"] for k in (0, 1)] == ["slower", "slower"]
    runs = _compare(tmp_path / "old-runs.jsonl", tmp_path / "new-runs.jsonl")
    assert len(runs.tiers) == 1 and "the mean per prompt of 3 repetitions" in runs.notes[0]
    with pytest.raises(InputError, match="no result of the same name, and none of the same"):
        _compare(tmp_path / "old-rates.jsonl", tmp_path / "new-runs.jsonl")


def test_names_with_a_date_pair_without_it(tmp_path: Path) -> None:
    """vLLM's client calls its files LABEL-RATEqps-MODEL-DATE.json."""
    for side, day, factor in (("a", 9, 1.0), ("b", 10, 1.5)):
        for clock, label in (("101010", "vllm-1qps-m"), ("101110", "vllm-2qps-m")):
            _save(tmp_path / side / f"{label}-202607{day:02d}-{clock}.json", _vllm(factor, label))
    comparison = _compare(tmp_path / "a", tmp_path / "b")
    assert [tier.tier for tier in comparison.tiers] == ["vllm-1qps-m", "vllm-2qps-m"]
    _save(tmp_path / "a" / "vllm-1qps-m-20260709-120000.json", _vllm(1.01, "again"))
    assert any("2 repetitions" in note for note in _compare(tmp_path / "a", tmp_path / "b").notes)


def test_a_sweep_of_vllm_is_read_by_cell(tmp_path: Path) -> None:
    for side, factor in (("a", 1.0), ("b", 1.5)):
        for run in (0, 1):
            _save(tmp_path / side / "BENCH--rate=1" / f"run={run}.json", _vllm(factor, str(run)))
        _save(tmp_path / side / "BENCH--rate=1" / "summary.json", {"no": "result"})
    (tier,) = _compare(tmp_path / "a", tmp_path / "b").tiers
    assert tier.tier == "BENCH--rate=1" and tier.metrics[0].verdict.kind == "slower"


def test_milliseconds_in_place_of_seconds_are_refused(tmp_path: Path) -> None:
    data = _vllm(mean_ttft_ms=200.0, mean_itl_ms=20.0)
    first = _save(tmp_path / "a.json", data)
    for key in ("ttfts", "itls"):
        wrong = json.loads(json.dumps(data))
        wrong[key] = [
            [step * 1e3 for step in row] if key == "itls" else row * 1e3 for row in wrong[key]
        ]
        path = _save(tmp_path / f"{key}.json", wrong)
        with pytest.raises(InputError, match="another unit, or altered"):
            _compare(first, path)


@pytest.mark.parametrize(
    ("concurrency", "input_tokens", "output_tokens", "voided"),
    [
        (1, 1000, 24, {"e2el"}),
        (8, 1000, 17, {"e2el"}),
        (8, 1000, 24, {"e2el", "ttft", "tpot"}),
        (None, 1000, 24, {"e2el", "ttft", "tpot"}),
        (1, 20, 24, {"e2el", "tpot"}),
    ],
)
def test_shorter_answers_void_what_they_make_faster(
    tmp_path: Path, concurrency: int | None, input_tokens: int, output_tokens: int, voided: set[str]
) -> None:
    """Beside each other, shorter answers leave the server more time for the others."""
    same: dict[str, Any] = {"max_concurrency": concurrency, "input_lens": [input_tokens] * COUNT}
    longer = [output_tokens] * (COUNT // 2) + [16] * (COUNT // 2)
    if output_tokens == 17:
        longer = [17] + [16] * (COUNT - 1)
    first = _save(tmp_path / "a.json", _vllm(output_lens=longer, **same))
    kinds = _kinds(_compare(first, _save(tmp_path / "b.json", _vllm(0.5, **same))))
    assert {name for name in ("ttft", "tpot", "e2el") if kinds[name] == "not comparable"} == voided


def _slow_noise(seed: int, count: int = 50) -> SavedRun:
    """Equal work on a server whose speed wavers by 5 % over about ten requests."""
    rng = random.Random(seed)
    level, requests = rng.gauss(0, 1), []
    for number in range(count):
        level = 0.8 * level + 0.6 * rng.gauss(0, 1)
        ttft = 0.2 * (1 + 0.05 * level)
        requests.append(
            SavedRequest(
                input_tokens=100,
                output_tokens=16,
                ttft_s=ttft,
                e2el_s=ttft * 3,
                text=None,
                error="",
                start_s=float(number),
            )
        )
    return SavedRun(
        source=str(seed),
        sha256=str(seed),
        workload={"model": "m"},
        requests=tuple(requests),
        output_throughput=1.0,
    )


def test_noise_that_lasts_for_several_requests_is_rarely_a_difference() -> None:
    """Taken as independent, 50 such prompts "differ" in half of all A/A comparisons."""
    kinds = Counter(
        compare_saved(
            [("t", _slow_noise(seed), _slow_noise(seed + 1000))], margin=0.02, confidence=0.95
        )
        .tiers[0]
        .metrics[0]
        .verdict.kind
        for seed in range(60)
    )
    assert kinds["faster"] + kinds["slower"] <= 9, kinds
