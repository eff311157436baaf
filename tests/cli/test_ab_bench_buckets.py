"""``hwtune ab-bench buckets``: tables, refusals and exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from hwtune.cli import build_app


def _write(path: Path, attention_us: float, tokens: int) -> str:
    shared = {"ph": "X", "pid": 1, "tid": 1}
    step = f"execute_context_1({tokens})_generation_0(0)"
    events = [
        {**shared, "cat": "user_annotation", "name": step, "ts": 0, "dur": 500},
        {
            **shared,
            "cat": "cpu_op",
            "name": "_C::cpu_attention_with_kv_cache",
            "ts": 1,
            "dur": attention_us,
        },
        {**shared, "cat": "cpu_op", "name": "aten::mm", "ts": 400, "dur": 100},
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    return str(path)


def _run(*arguments: str) -> tuple[int, str]:
    line = ["ab-bench", "buckets", *arguments]
    result = CliRunner().invoke(build_app(line), line)
    return result.exit_code, result.stdout


def test_two_arms_with_the_same_work(tmp_path: Path) -> None:
    before = _write(tmp_path / "a.json", 300, 512)
    after = _write(tmp_path / "b.json", 150, 512)
    status, text = _run(before, after, "--format", "json")
    assert status == 0
    data = json.loads(text)
    assert data["scope"] == "bucket"
    assert {row["bucket"]: row["ratio"] for row in data["rows"]} == {"attention": 0.5, "GEMM": 1.0}
    status, text = _run(before, after)
    assert "candidate/baseline" in text and "0.500" in text and "neither a kernel's" in text


def test_other_work_has_no_ratio_and_exit_status_1(tmp_path: Path) -> None:
    before = _write(tmp_path / "a.json", 300, 512)
    status, text = _run(before, _write(tmp_path / "b.json", 150, 400), "--by-phase")
    assert status == 1
    assert "no ratios: different work: 512 prefill" in text
    assert "0.500" not in text and "prefill" in text


def test_one_arm_alone_shows_shares(tmp_path: Path) -> None:
    status, text = _run(_write(tmp_path / "a.json", 300, 512), "--format", "csv")
    assert status == 0
    assert text.splitlines()[0].startswith("phase,bucket,baseline_ms")
    assert text.splitlines()[1].startswith("all,attention,0.3,75.0")


def test_names_of_a_trace_cannot_steer_the_terminal(tmp_path: Path) -> None:
    event = {"ph": "X", "pid": 1, "tid": 1, "cat": "cpu_op", "ts": 0, "dur": 9}
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"traceEvents": [{**event, "name": "x\x1b[2J\ud800\ny"}]}))
    status, text = _run(str(path))
    assert status == 0
    assert "x\\x1b[2J\\ud800\\ny 0.0 ms" in text
