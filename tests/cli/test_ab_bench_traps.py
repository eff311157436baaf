"""Deliberate traps, against mock servers: each is refused, or survived."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from hwtune.adapters.load.mock_frames import Behaviour
from hwtune.adapters.load.mock_thread import running_mock
from hwtune.cli.ab_bench import app

FAST = Behaviour(ttft_s=0.002, tpot_s=0.0002, prefix_caching=False)
SMALL = [
    *("--tier", "100-200", "--blocks", "6", "--prompts-per-tier", "12"),
    *("--output-tokens", "32", "--warm-up", "1", "--vocab-size", "1000", "--settle", "0"),
]
HWTUNE = [sys.executable, "-c", "from hwtune.cli import main; main()", "ab-bench", "serving"]


def _serve(run_dir: Path, baseline: Behaviour, candidate: Behaviour, *arguments: str) -> Result:
    with running_mock(baseline) as (url_a, _), running_mock(candidate) as (url_b, _):
        urls = ["--baseline-url", url_a, "--candidate-url", url_b]
        command = ["serving", "m", *urls, *SMALL, "--run-dir", str(run_dir), *arguments]
        return CliRunner().invoke(app, command)


FASTER: dict[str, Any] = {"ttft_s": 0.0005, "tpot_s": 0.00005}


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (Behaviour(text="degenerate", **FASTER), "output degenerate"),
        (Behaviour(text="first word, then noise", **FASTER), "outputs have nothing in common"),
        (Behaviour(prefix_caching=True, **FASTER), "prefix caching set alike: baseline off"),
        (
            Behaviour(prefix_caching=False, cache_hits=True, **FASTER),
            "found in the prefix cache: baseline 0.0 % of tokens, candidate 100.0 %",
        ),
        (Behaviour(cache_hits=True, **FASTER), "found in the prefix cache"),
        (
            Behaviour(tokens_per_chunk=32, ttft_s=0.002),
            "12 of 12 answers came, most of them, at once",
        ),
        (Behaviour(fault="error event", fault_every=5, **FASTER), "error event"),
        (Behaviour(fault="zero tokens", fault_every=5, **FASTER), "zero tokens"),
        (Behaviour(fault="error body", fault_every=5, **FASTER), "error body"),
    ],
)
def test_a_faster_candidate_that_cheats_is_not_comparable_and_shows_no_change(
    tmp_path: Path, candidate: Behaviour, reason: str
) -> None:
    result = _serve(tmp_path / "run", FAST, candidate)
    assert result.exit_code == 1, result.output
    assert "not comparable" in result.stdout and reason in result.stdout
    assert "faster" not in result.stdout and "] %" not in result.stdout
    again = CliRunner().invoke(app, ["compare", str(tmp_path / "run")])
    assert again.exit_code == 1 and reason in again.stdout


def test_both_caches_off_and_unhit_is_said_with_its_evidence(tmp_path: Path) -> None:
    result = _serve(tmp_path / "run", FAST, FAST)
    assert "prefix caching set alike: baseline off, candidate off" in result.stdout
    assert "baseline 0.0 % of tokens, candidate 0.0 % of tokens" in result.stdout


def test_a_baseline_that_answers_again_tells_how_often_it_agrees_with_itself(
    tmp_path: Path,
) -> None:
    result = _serve(tmp_path / "run", FAST, FAST, "--noise-floor", "--format", "json")
    records = [
        json.loads(line) for line in (tmp_path / "run" / "requests.jsonl").read_text().splitlines()
    ]
    phases = Counter(record["phase"] for record in records)
    assert phases == {"warm-up": 2, "a/a": 24, "measured": 24, "repeat": 8}
    gates = {gate["name"]: gate for gate in json.loads(result.stdout)["tiers"][0]["gates"]}
    assert "the baseline with itself: the same in 8 of 8" in gates["outputs agree"]["evidence"]


@contextmanager
def _mock_process(port: int = 0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server that can be killed."""
    command = [sys.executable, "-m", "hwtune.adapters.load.mock_server", "--port", str(port)]
    timing = ["--ttft-s", "0.01", "--tpot-s", "0.002"]
    child = subprocess.Popen([*command, *timing], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        yield child, int(child.stdout.readline())
    finally:
        child.kill()
        child.wait(10)
        child.stdout.close()


def _lines(path: Path) -> list[dict[str, Any]]:
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


@pytest.mark.usefixtures("on_time")
def test_a_server_killed_in_block_5_costs_only_the_pair_it_was_in(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    journal = run_dir / "requests.jsonl"
    with running_mock(FAST) as (url_a, _):
        with _mock_process() as (victim, port):
            urls = ["--baseline-url", url_a, "--candidate-url", f"http://127.0.0.1:{port}"]
            command = [*HWTUNE, "m", *urls, *SMALL, "--run-dir", str(run_dir)]
            child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
            # 2 of the warm-up, 2 in each of 4 blocks, 1 of the fifth.
            deadline = time.monotonic() + 60
            while len(_lines(journal)) < 11 and time.monotonic() < deadline:
                time.sleep(0.002)
            victim.kill()
            _, shown = child.communicate(timeout=60)
        assert child.returncode == 6, shown
        assert "candidate: the server is gone in tier 100-200, block" in shown
        assert "Traceback" not in shown and f"--resume {run_dir}" in shown
        kept = _lines(journal)
        with _mock_process(port):
            again = CliRunner().invoke(
                app, ["serving", "--resume", str(run_dir), "--format", "json"]
            )
    assert again.exit_code in (0, 1), again.output
    assert _lines(journal)[: len(kept)] == kept, "no record was lost or changed"
    tier = json.loads(again.stdout)["tiers"][0]
    assert tier["pairs_done"] == 6
    assert not [gate for gate in tier["gates"] if gate["state"] == "failed"]
    measured = [record for record in _lines(journal) if record["phase"] == "measured"]
    retried = {record["pair"] for record in measured if record["attempt"]}
    assert retried and retried <= {2, 3, 4, 5}, "finished pairs are not measured again"


def test_an_open_loop_over_two_endpoints_of_a_chat_reaches_a_verdict(tmp_path: Path) -> None:
    with (
        running_mock(FAST) as (url_a, server_a),
        running_mock(FAST) as (url_b, server_b),
        running_mock(FAST) as (url_c, server_c),
        running_mock(FAST) as (url_d, server_d),
    ):
        urls = ["--baseline-url", url_a, "--baseline-url", url_b]
        urls += ["--candidate-url", url_c, "--candidate-url", url_d]
        options = ["--endpoint", "chat", "--rate", "200", "--goodput", "ttft:1000", "tpot:500"]
        command = ["serving", "m", *urls, *SMALL, "--run-dir", str(tmp_path / "run"), *options]
        result = CliRunner().invoke(app, [*command, "--format", "json"])
    assert result.exit_code in (0, 1), result.output
    data = json.loads(result.stdout)
    assert data["conditions"]["load"] == "open loop, poisson arrivals at 200 requests/s"
    assert data["conditions"]["goodput"] == "ttft <= 1000 ms, tpot <= 500 ms"
    names = [metric["metric"]["name"] for metric in data["tiers"][0]["metrics"]]
    assert {"ttft_due", "e2el_due", "goodput"} <= set(names)
    low, high = data["tiers"][0]["prompt_tokens"]
    assert 60 < low <= high <= 200 - 32, "texts have about the length asked for, and not more"
    # One warm-up and twelve measured, in turn; and the two probes of each arm.
    assert [server.requests for server in (server_a, server_b)] == [2 + 1 + 6, 6]
    texts = [
        sorted(body["messages"][0]["content"] for server in arm for body in server.bodies)
        for arm in ((server_a, server_b), (server_c, server_d))
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--arrival", "poisson"], "--arrival poisson needs --rate"),
        (["--rate", "2", "--concurrency", "4"], "--rate and --concurrency"),
        (["--rate", "0"], "--rate 0.0: must be"),
        (["--goodput", "ttft"], "--goodput ttft: expected"),
        (["--goodput", "ttft:200 ttft:300"], "names a metric twice"),
        (["--api-key-env", "HWTUNE_NO_SUCH"], "no such variable"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_written(
    tmp_path: Path, options: list[str], text: str
) -> None:
    result = _serve(tmp_path / "run", FAST, FAST, *options)
    assert text in str(result.exception) and not (tmp_path / "run").exists()


def _trace(path: Path, parts: bool) -> Path:
    lines = []
    for k in range(12):
        ids = {"hash_ids": [1, 100 + k % 2, 200 + k]} if parts else {"hash_ids": []}
        request = {"timestamp": k * 10, "input_length": 1100 + k, "output_length": 8 + k}
        lines.append(json.dumps({**request, **ids}))
    path.write_text("\n".join(lines))
    return path


def _replay(tmp_path: Path, candidate: Behaviour, *options: str, parts: bool = False) -> Result:
    trace = _trace(tmp_path / "trace.jsonl", parts)
    with running_mock(FAST) as (url_a, server), running_mock(candidate) as (url_b, _):
        urls = ["--baseline-url", url_a, "--candidate-url", url_b, "--vocab-size", "1000"]
        common = ["--blocks", "6", "--warm-up", "1", "--settle", "0", "--format", "json"]
        command = ["serving", "m", *urls, *common, "--run-dir", str(tmp_path / "run")]
        result = CliRunner().invoke(app, [*command, "--arrivals", str(trace), *options])
        (tmp_path / "bodies.json").write_text(json.dumps(server.bodies[1:]))
    return result


@pytest.mark.usefixtures("on_time")
def test_a_trace_is_replayed_with_its_lengths_and_its_times(tmp_path: Path) -> None:
    result = _replay(tmp_path, FAST, "--rate", "400")
    assert result.exit_code in (0, 1), result.output
    data = json.loads(result.stdout)
    assert data["conditions"]["load"] == "open loop, 12 requests of a trace at 400 requests/s"
    (tier,) = data["tiers"]
    assert (tier["tier"], tier["pairs_done"], tier["prompts"]) == ("trace", 6, 12)
    assert not [gate for gate in tier["gates"] if gate["state"] == "failed"]
    bodies = json.loads((tmp_path / "bodies.json").read_text())
    lengths = sorted((len(body["prompt"]), body["max_tokens"]) for body in bodies)
    assert lengths == [(1100 + k, 8 + k) for k in range(12)]
    design = json.loads((tmp_path / "run" / "design.json").read_text())
    assert design["trace"][3]["due_s"] == 0.03


def test_prompts_of_a_trace_share_what_the_trace_says_they_share(tmp_path: Path) -> None:
    result = _replay(tmp_path, FAST, parts=True)
    assert result.exit_code in (0, 1), result.output
    prompts = [body["prompt"] for body in json.loads((tmp_path / "bodies.json").read_text())]
    assert len(prompts) == 12
    # Two requests a block: they share the first 512 tokens and not the next.
    shared = Counter(tuple(prompt[:512]) for prompt in prompts)
    assert sorted(shared.values()) == [2] * 6
    assert len({tuple(prompt[:1024]) for prompt in prompts}) == 12
    assert '"prefix caches answer alike"' in result.stdout
    cached = _replay_again(tmp_path)
    assert "prefix caches answer alike" in cached and "candidate 100.0 % of tokens" in cached


def _replay_again(tmp_path: Path) -> str:
    again = tmp_path / "cached"
    again.mkdir()
    hits = Behaviour(prefix_caching=False, cache_hits=True, ttft_s=0.002, tpot_s=0.0002)
    result = _replay(again, hits, parts=True)
    assert result.exit_code == 1
    return result.stdout


def test_a_trace_decides_lengths_and_times_itself(tmp_path: Path) -> None:
    result = _replay(tmp_path, FAST, "--tier", "100-200")
    assert "--arrivals and --tier: the trace decides that" in str(result.exception)
    assert not (tmp_path / "run").exists()
