"""A/B between real vLLM servers that are already up: a sound pair, and a candidate that cheats."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import start_command, wait_until_serving
from tests.e2e.support import EVERY_SHAPE, FLAGS, MODEL, Served, free_port, hwtune

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

SMALL = [
    *("--blocks", "6", "--prompts-per-tier", "6", "--output-tokens", "8", "--warm-up", "1"),
    *("--settle", "0.2", "--format", "json"),
]


def _arms(baseline: Served, candidate: Served) -> list[str]:
    return [
        *("--baseline-url", baseline.url, "--baseline-run", str(baseline.run_dir)),
        *("--candidate-url", candidate.url, "--candidate-run", str(candidate.run_dir)),
    ]


def _gates(data: dict[str, Any], state: str) -> dict[str, str]:
    found = [*data["gates"], *(gate for tier in data["tiers"] for gate in tier["gates"])]
    return {gate["name"]: gate["evidence"] for gate in found if gate["state"] == state}


def test_three_tiers_between_two_servers_reach_a_verdict_with_every_gate_checked(
    baseline: Served, candidate: Served, tmp_path: Path
) -> None:
    run_dir = tmp_path / "ab"
    tiers = ["--tier", "64-128", "--tier", "128-256", "--tier", "256-512"]
    result = hwtune(
        *("ab-bench", "serving", str(MODEL), "--profile", str(EVERY_SHAPE), *SMALL, *tiers),
        *(*_arms(baseline, candidate), "--run-dir", str(run_dir), "--noise-floor"),
    )
    assert result.returncode in (0, 1), result.stdout + result.stderr
    data = json.loads(result.stdout)
    assert [tier["pairs_done"] for tier in data["tiers"]] == [6, 6, 6]
    passed = _gates(data, "passed")
    assert passed["prefix caching set alike"] == "baseline off, candidate off"
    assert "candidate 0.0 % of tokens" in passed["prompts not from a prefix cache"]
    assert "the baseline with itself: the same in 6 of 6" in passed["outputs agree"]
    assert "outputs agree" not in _gates(data, "failed")
    exported = hwtune("ab-bench", "export", str(run_dir))
    assert exported.returncode == 0, exported.stderr
    _check_with_vllm([Path(line) for line in exported.stdout.splitlines()])


def _check_with_vllm(paths: list[Path]) -> None:
    """vLLM's own client, given the same requests, computes the same statistics."""
    code = """
import json, sys
from vllm.benchmarks.lib.endpoint_request_func import RequestFuncOutput
from vllm.benchmarks.serve import calculate_metrics
for path in sys.argv[1:]:
    data = json.load(open(path))
    rows = zip(*(data[k] for k in ("ttfts", "itls", "latencies", "input_lens", "output_lens",
                                   "generated_texts", "start_times")))
    outputs = [
        RequestFuncOutput(success=True, ttft=t, itl=i, latency=l, prompt_len=p, output_tokens=o,
                          generated_text=x, start_time=s)
        for t, i, l, p, o, x, s in rows
    ]
    found, lengths = calculate_metrics([], outputs, data["duration"], None, [99.0], {})
    assert lengths == data["output_lens"]
    for ours, theirs in (
        ("mean_ttft_ms", found.mean_ttft_ms), ("median_tpot_ms", found.median_tpot_ms),
        ("std_itl_ms", found.std_itl_ms), ("mean_e2el_ms", found.mean_e2el_ms),
        ("output_throughput", found.output_throughput),
        ("total_token_throughput", found.total_token_throughput),
        ("p99_itl_ms", dict(found.percentiles_itl_ms)[99.0]),
    ):
        assert abs(data[ours] - theirs) <= 1e-6 * abs(theirs), (path, ours, data[ours], theirs)
print("agree")
"""
    command = [sys.executable, "-c", code, *map(str, paths)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.stdout.endswith("agree\n"), result.stderr[-2000:]


@pytest.fixture(scope="module")
def cheat(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of other weights, with prefix caching left on."""
    folder = tmp_path_factory.mktemp("cheat")
    other = folder / "model"
    shutil.copytree(MODEL, other)
    script = (MODEL / "make_weights.py").read_text().replace("manual_seed(0)", "manual_seed(7)")
    (other / "make_weights.py").write_text(script)
    subprocess.run([sys.executable, str(other / "make_weights.py")], check=True, timeout=120)
    port = free_port()
    command = [sys.executable, "-m", "hwtune", "serve", str(other), "--profile", str(EVERY_SHAPE)]
    command += ["--run-dir", str(folder / "run"), "--port", str(port), *FLAGS]
    served = start_command([*command, "--enable-prefix-caching"], folder / "run", port)
    try:
        wait_until_serving(served)
        yield served
    finally:
        served.process.terminate()
        served.process.wait(60)
        assert served.process.stdout is not None
        served.process.stdout.close()


def test_a_candidate_with_other_text_and_other_caching_is_refused(
    baseline: Served, cheat: Served, tmp_path: Path
) -> None:
    run_dir = tmp_path / "ab"
    tiers = ["--tier", "64-128"]
    command = ["ab-bench", "serving", str(MODEL), *SMALL, *tiers, *_arms(baseline, cheat)]
    result = hwtune(*command, "--run-dir", str(run_dir))
    assert result.returncode == 1, result.stdout + result.stderr
    data = json.loads(result.stdout)
    failed = _gates(data, "failed")
    assert failed["prefix caching set alike"] == "baseline off, candidate on"
    assert "model" in failed["arms differ only in what was declared"]
    assert "outputs agree" in failed or "sane output" in failed
    for metric in data["tiers"][0]["metrics"]:
        assert metric["verdict"]["kind"] == "not comparable" and metric["ratio"] is None


def test_a_run_directory_of_another_server_proves_nothing(
    baseline: Served, candidate: Served, tmp_path: Path
) -> None:
    arms = _arms(baseline, candidate)
    arms[3], arms[7] = arms[7], arms[3]
    command = ["ab-bench", "serving", str(MODEL), *SMALL, *arms]
    result = hwtune(*command, "--run-dir", str(tmp_path / "ab"))
    assert result.returncode == 3 and "its server listens on port" in result.stderr
    assert not (tmp_path / "ab").exists()
