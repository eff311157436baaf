from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SCENARIO: dict[str, Any] = {
    "name": "one",
    "note": "kept",
    "config": {"max_num_batched_tokens": 64, "max_num_seqs": 4, "max_model_len": 256},
    "kv": {"num_blocks": 20, "groups": [{"type": "full", "block_size": 16}]},
    "requests": [{"id": "a", "prompt_len": 100, "output_len": 2}],
}
WITHOUT_VLLM = '#!/bin/sh\nexec "{python}" -I -S "$@"\n'


def hwtune(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hwtune", "simulate", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)


def batch(*scenarios: object) -> list[dict[str, Any]]:
    lines = [one if isinstance(one, str) else json.dumps(one) for one in scenarios]
    result = hwtune("--batch", "-", stdin="\n".join(lines))
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_scenario_is_answered_in_the_form_of_a_recorded_run() -> None:
    (answer,) = batch(SCENARIO)
    assert answer["note"] == "kept"
    assert answer["config"] == SCENARIO["config"]
    assert (answer["status"], answer["num_steps"]) == ("ok", 4)
    assert (answer["scheduler_block_size"], answer["hash_block_size"]) == (16, 16)
    first, second, third, last = answer["steps"]
    assert first == {
        "step": 0,
        "sched": [["a", 64, 0, 0, "new"]],
        "total": 64,
        "budget_left": 0,
        "preempted": [],
        "running": ["a"],
        "waiting": [],
        "blocks": {"a": [4]},
        "held": {"a": [4]},
        "free": 15,
        "attn": {
            "v1": "PrefillNoCache",
            "v1_returned": "PrefillNoCache",
            "v2": "PrefillNoCache",
            "split": [0, 1, 0, 64],
            "gdn_split": [0, 1, 0, 64],
        },
        "hygon": "vendor_prefill",
        "out": {},
        "finished": [],
        "free_after": 15,
    }
    assert second["sched"] == [["a", 36, 64, 0, "running"]]
    assert third["finished"] == ["a"]
    assert (last["total"], last["attn"], last["free"]) == (0, None, 19)


def test_a_bad_line_costs_no_other_line() -> None:
    unknown = {**SCENARIO, "config": {**SCENARIO["config"], "max_num_sequences": 4}}
    answers = batch(SCENARIO, "{broken", unknown, SCENARIO)
    assert [answer.get("status") for answer in answers] == ["ok", None, None, "ok"]
    assert answers[1]["line"] == 2
    assert "not JSON" in answers[1]["error"]["message"]
    assert answers[2]["name"] == "one"
    assert "config.max_num_sequences" in answers[2]["error"]["message"]


def test_a_run_that_cannot_end_says_why() -> None:
    kv = {**SCENARIO["kv"], "num_blocks": 5}
    (answer,) = batch({**SCENARIO, "kv": kv})
    assert answer["status"] == "stuck"
    assert "a: 100 tokens take 7 blocks" in answer["reason"]


def test_the_version_is_the_scenarios_own_or_the_option(tmp_path: Path) -> None:
    file = tmp_path / "scenarios.jsonl"
    file.write_text(f"{json.dumps(SCENARIO)}\n{json.dumps({**SCENARIO, 'vllm': '0.27.1'})}\n")
    result = hwtune("--batch", str(file), "--vllm-version", "0.32.5")
    versions = [json.loads(line)["vllm"] for line in result.stdout.splitlines()]
    assert versions == ["0.32.5", "0.27.1"]


def test_a_python_without_vllm_is_a_missing_dependency(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(WITHOUT_VLLM.format(python=sys.executable))
    python.chmod(0o755)
    result = hwtune("--batch", "-", "--oracle-python", str(python), stdin=json.dumps(SCENARIO))
    assert result.returncode == 5
    assert result.stderr.startswith(f"hwtune: error: vLLM is not installed for {python}")
    assert result.stderr.count("\n") == 1


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    result = hwtune("--batch", str(tmp_path / "absent.jsonl"))
    assert result.returncode == 3
    assert "cannot be read" in result.stderr
    assert result.stderr.count("\n") == 1
