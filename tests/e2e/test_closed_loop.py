"""Derive, serve, prove and measure on real vLLM."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support import (
    EVERY_SHAPE,
    FLAGS,
    MODEL,
    Served,
    cli_environment,
    free_port,
    hwtune,
    processes_of,
    prompt,
    serve_command,
)

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


def facts(run_dir: Path) -> dict[str, Any]:
    result = hwtune("verify-markers", "--run-dir", str(run_dir), "--format", "json")
    assert result.returncode == 0, result.stdout + result.stderr
    found: dict[str, Any] = json.loads(result.stdout)["facts"]
    return {name: fact["value"] for name, fact in found.items() if fact is not None}


def test_the_baseline_gets_vllms_own_page(baseline: Served) -> None:
    seen = facts(baseline.run_dir)
    assert seen["attention_block_size"] == 896
    assert seen["padding_pct"] == 14.43
    assert seen["kv_cache_tokens"] == 2_949_750
    assert seen["prefix_caching"] is False


def test_the_candidate_gets_the_minimum_compatible_page(candidate: Served) -> None:
    seen = facts(candidate.run_dir)
    assert seen["attention_block_size"] == 832
    assert seen["padding_pct"] == 6.26
    assert seen["kv_cache_tokens"] == 3_176_605


def test_both_arms_give_the_same_text_and_only_the_candidate_hits(
    baseline: Served, candidate: Served
) -> None:
    for length in (2, 63, 64, 831, 832, 833, 1700):
        assert candidate.complete(prompt(length)) == baseline.complete(prompt(length))
    hits = {served.run_dir: kernel_hits(served.run_dir) for served in (baseline, candidate)}
    assert set(hits[baseline.run_dir]) == set()
    assert hits[candidate.run_dir]["vendor_prefill"] >= 6
    assert hits[candidate.run_dir]["page_decode"] >= 7 * 11


def kernel_hits(run_dir: Path) -> dict[str, int]:
    from hwtune.io.counters import read_counters

    hits: dict[str, int] = {}
    for count in read_counters(run_dir):
        if count.outcome == "hit" and count.calls:
            hits[count.kernel] = hits.get(count.kernel, 0) + count.calls
    return hits


def test_expectations_decide_the_exit_status(candidate: Served) -> None:
    good = ("--expect", "block_size=832", "--expect", "hits=vendor_prefill,page_decode")
    directory = ("verify-markers", "--run-dir", str(candidate.run_dir))
    assert hwtune(*directory, *good).returncode == 0
    assert hwtune(*directory, "--expect", "block_size=784").returncode == 1


def test_a_marker_quoted_in_a_prompt_is_no_evidence(baseline: Served) -> None:
    log = baseline.run_dir / "server.log"
    quoted = log.read_text() + (
        "(APIServer pid=1) INFO 01-01 00:00:00 [logger.py:1] Received request x: prompt: "
        "'hwtune[000000000000] first hit kernel=vendor_prefill query=9 context=9 block_size=832'\n"
    )
    copy = baseline.run_dir.parent / "quoted.log"
    copy.write_text(quoted)
    result = hwtune("verify-markers", str(copy), "--expect", "hits=vendor_prefill")
    assert result.returncode == 1


def test_another_page_than_planned_stops_the_server(model: Path, tmp_path: Path) -> None:
    profile = tmp_path / "wrong.toml"
    # Says that vLLM would choose 784 by itself here; it chooses 896.
    wrong = "default_alignment_tokens = 16"
    profile.write_text(EVERY_SHAPE.read_text().replace("default_alignment_tokens = 128", wrong))
    run_dir = tmp_path / "run"
    arguments = ("--profile", str(profile), "--arm", "baseline", "--run-dir", str(run_dir))
    result = hwtune(*serve_command(*arguments, "--port", str(free_port()))[3:])
    assert result.returncode == 1, result.stdout + result.stderr
    assert "784" in result.stderr
    assert "896" in result.stderr
    assert "Traceback" not in result.stderr
    assert json.loads((run_dir / "status.json").read_text())["state"] == "stopped"
    assert processes_of(run_dir) == []


def test_a_failed_start_shows_its_first_cause(model: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    arguments = ("--run-dir", str(run_dir), "--quiet", "--port", str(free_port()))
    command = ["serve", str(MODEL), "--profile", "cpu", *arguments, *FLAGS[:-1], "100000000"]
    result = hwtune(*command)
    assert result.returncode == 6, result.stdout + result.stderr
    error = [line for line in result.stderr.splitlines() if line.startswith("hwtune: error")]
    assert len(error) == 1
    assert "max_model_len" in error[0]
    assert json.loads((run_dir / "status.json").read_text())["state"] == "died"
    assert processes_of(run_dir) == []


@pytest.mark.parametrize("after_s", [0.5, 12.0])
def test_stopping_during_start_leaves_no_process(
    model: Path, tmp_path: Path, after_s: float
) -> None:
    run_dir = tmp_path / "run"
    arguments = ("--run-dir", str(run_dir), "--quiet", "--port", str(free_port()))
    process = subprocess.Popen(
        serve_command(*arguments),
        env=cli_environment(),
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    time.sleep(after_s)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 130
    assert processes_of(run_dir) == []


def test_killing_hwtune_itself_takes_the_server_along(model: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    arguments = ("--run-dir", str(run_dir), "--quiet", "--port", str(free_port()))
    process = subprocess.Popen(
        serve_command(*arguments),
        env=cli_environment(),
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    while len(processes_of(run_dir)) < 2:
        time.sleep(0.2)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while processes_of(run_dir) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert processes_of(run_dir) == []


def test_a_port_in_use_is_said_before_anything_starts(model: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run_dir = tmp_path / "run"
        command = serve_command("--run-dir", str(run_dir), "--port", str(port))
        result = hwtune(*command[3:])
    assert result.returncode == 6
    assert f"127.0.0.1:{port}: cannot listen there" in result.stderr
    assert not run_dir.exists()


def test_a_broken_plan_costs_the_evidence_not_the_service(model: Path, tmp_path: Path) -> None:
    """The plugin, given a plan it cannot read, refuses with one line and vLLM goes on."""
    plan = tmp_path / "plan.json"
    plan.write_text("{")
    code = "from vllm.plugins import load_general_plugins; load_general_plugins(); print('on')"
    import sys

    result = subprocess.run(
        [sys.executable, "-c", code],
        env=cli_environment(HWTUNE_PLAN=str(plan)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "hwtune[unreadable] refused reason=" in result.stdout + result.stderr
    assert result.stdout.endswith("on\n")


@pytest.fixture(scope="module")
def ab_run(
    model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A short A/B run: its directory, and what the command gave. One tier takes several chunks."""
    run_dir = tmp_path_factory.mktemp("ab") / "ab"
    result = hwtune(
        *("ab-bench", "serving", str(MODEL), "--profile", str(EVERY_SHAPE)),
        *("--run-dir", str(run_dir)),
        *("--tier", "256-512", "--tier", "2048-4600", "--blocks", "6", "--prompts-per-tier", "6"),
        *("--output-tokens", "8", "--format", "json", "--port", str(free_port())),
        *FLAGS,
        "--no-enable-prefix-caching",
    )
    return run_dir, result


def test_a_short_ab_run_ends_with_a_verdict_for_each_tier(
    ab_run: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    run_dir, result = ab_run
    assert result.returncode in (0, 1), result.stdout + result.stderr
    comparison = json.loads(result.stdout)
    assert comparison["scope"] == "serving"
    records = [json.loads(line) for line in (run_dir / "requests.jsonl").read_text().splitlines()]
    assert {record["arm"] for record in records} == {"baseline", "candidate"}
    assert not [record for record in records if record["failure"]]
    for arm in ("baseline", "candidate"):
        assert processes_of(run_dir / "arms" / arm) == []


def test_simulate_predicts_every_count_of_a_sequential_run(
    ab_run: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    run_dir, _ = ab_run
    result = hwtune("simulate", "--against", str(run_dir), "--format", "json")
    assert result.returncode == 0, result.stdout + result.stderr
    comparisons = {c["arm"]: c for c in json.loads(result.stdout)["comparisons"]}
    assert {arm: c["agreement"] for arm, c in comparisons.items()} == {
        "baseline": "exact",
        "candidate": "exact",
    }
    counted = {
        (row["kernel"], row["outcome"]): row["counted"] for row in comparisons["candidate"]["rows"]
    }
    # Two tiers with 6 prompts and 2 warm-ups each; 7 decodes per answer of 8 tokens.
    assert counted["page_decode", "hit"] == (12 + 4) * 7
    # A prompt above the budget of 2048 takes two or three chunks.
    assert counted["vendor_prefill", "hit"] > 16
