"""``hwtune ab-bench kernels`` without --static: real kernels on this CPU, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hwtune.cli import build_app
from hwtune.domain.kernel_timing import CallCase, Sample

SMALL = ("--shape", "6/1/64", "--page", "64", "--context", "130")


def _hwtune(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hwtune", "ab-bench", "kernels", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def _refused(*arguments: str) -> str:
    line = ["ab-bench", "kernels", *arguments]
    result = CliRunner().invoke(build_app(line), line)
    assert result.exit_code != 0
    return str(result.exception)


def test_cpu_kernels_are_compared_and_timed_against_vllms() -> None:
    done = _hwtune(*SMALL, "--query", "1", "--query", "70", "--pairs", "6", "--format", "json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["scope"] == "kernel"
    rows = {row["sample"]["kernel"]: row for row in data["rows"]}
    assert set(rows) == {"decode.cpu", "prefill.cpu"}
    for row in rows.values():
        assert row["sample"]["baseline"] == "vLLM CPU_ATTN"
        assert 0 < row["sample"]["ours_error"]["relative_l2"] < 0.01
        assert row["interval"][0] <= row["speed_up"] <= row["interval"][1]


def test_a_kernel_of_the_users_own_is_held_against_the_reference(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from hwtune_kernels.reference import paged_attention as right\n"
        "def wrong(**call):\n"
        "    right(**{**call, 'scale': 2 * call['scale']})\n"
    )
    own = ("--kernel", "mine:right", "--kernel", "mine:wrong")
    done = _hwtune(
        *(*SMALL, *own, "--query", "70", "--pairs", "6", "--format", "json"),
        PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    )
    assert done.returncode == 1, done.stderr
    right, wrong = json.loads(done.stdout)["rows"]
    assert right["sample"]["kernel"] == "mine:right" and right["speed_up"] > 0
    assert wrong["speed_up"] is None and wrong["verdict"].startswith("no ratio")


@pytest.mark.parametrize(
    ("kernel", "status", "problem"),
    [
        ("unread:f", 3, "unread:f cannot be loaded: SyntaxError"),
        ("mine:fails", 6, "context 130: KeyError: 'x'"),
    ],
)
def test_what_a_users_kernel_raises_is_no_bug_of_hwtunes(
    kernel: str, status: int, problem: str, tmp_path: Path
) -> None:
    (tmp_path / "unread.py").write_text("def f(:\n")
    (tmp_path / "mine.py").write_text("def fails(**call): return {}['x']\n")
    done = _hwtune(
        *(*SMALL, "--kernel", kernel, "--query", "70", "--pairs", "0"),
        PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    )
    assert done.returncode == status
    assert problem in done.stderr
    assert "a bug" not in done.stderr


def test_pairs_that_cannot_be_are_left_out_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[CallCase] = []

    def samples(cases: Sequence[CallCase], *_: object) -> list[Sample]:
        asked.extend(cases)
        return []

    monkeypatch.setattr("hwtune.adapters.kernel_bench.run.device_here", lambda: ("cpu", "here"))
    monkeypatch.setattr("hwtune.adapters.kernel_bench.run.samples", samples)
    line = ["ab-bench", "kernels", *("--query", "1", "--query", "200"), *SMALL, "--context", "70"]
    said = CliRunner().invoke(build_app(line), line).stderr
    assert [(case.query, case.context) for case in asked] == [(1, 130), (1, 70)]
    assert said == (
        "left out, more new tokens than context: query 200 in context 130, query 200 in context 70\n"
    )


def test_triton_kernels_are_compared_in_the_interpreter() -> None:
    done = _hwtune(
        *(*SMALL, "--kernel", "decode.triton", "--kernel", "prefill.triton", "--batch", "2"),
        *(
            "--query",
            "1",
            "--query",
            "20",
            "--pairs",
            "0",
            "--dtype",
            "float16",
            "--format",
            "json",
        ),
        TRITON_INTERPRET="1",
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert {row["sample"]["baseline"] for row in rows} == {
        "vLLM unified attention",
        "vLLM unified attention, 64 segments",
    }
    assert {row["verdict"] for row in rows} == {"not timed"}
    assert all(row["sample"]["ours_error"]["relative_l2"] < 1e-3 for row in rows)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--static", "--query", "4"), "runs nothing; leave out --query"),
        (("--target", "sm_90"), "--target has no effect without --static"),
        (("--query", "300", "--context", "200"), "more new tokens than the --context 200"),
        (("--static", "--dtype", "float32"), "runs nothing; leave out --dtype"),
        (("--static", "--pairs", "3"), "runs nothing; leave out --pairs"),
        (("--pairs", "0", "--confidence", "0.9"), "--confidence has no effect with --pairs 0"),
        (("--pairs", "-1"), "--pairs -1: must be 0 or more"),
        (("--confidence", "nan"), "--confidence nan"),
        (("--kernel", "prefill.cpu", "--query", "1", "--pairs", "0"), "none of the kernels is for"),
        (("--kernel", "decode.npu", "--query", "1", "--pairs", "0"), "is none of prefill.cpu"),
        (("--kernel", "no_such:kernel", "--query", "1", "--pairs", "0"), "is none of prefill.cpu"),
        (("--kernel", "os:no_such", "--query", "1", "--pairs", "0"), "os:no_such cannot be loaded"),
        (("--kernel", "decode.triton", "--query", "1"), "needs a GPU"),
        ((*SMALL, "--query", "1", "--batch", "2"), "takes one sequence"),
    ],
)
def test_what_cannot_be_asked(arguments: tuple[str, ...], problem: str) -> None:
    assert problem in _refused(*arguments)
