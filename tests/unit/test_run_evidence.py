"""A run directory as the launcher leaves it -> evidence."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hwtune.domain.answers import answers
from hwtune.domain.errors import InputError
from hwtune.domain.launch import Expectation, LaunchPlan
from hwtune.domain.markers import check
from hwtune.io.counters import CounterFile
from hwtune.io.marker_sets import load_diagnoses
from hwtune.io.plans import write_plan
from hwtune.io.run_evidence import collect

EXPECT = Expectation(
    block_size=832,
    padding_pct=6.26,
    enable_prefix_caching=True,
    mamba_cache_mode="align",
    backend="CPU_ATTN",
    kernels=("k1",),
)
PLAN = LaunchPlan(
    run_id="r",
    nonce="a1",
    arm="candidate",
    model="m",
    served_model_name="m",
    profile="cpu",
    device="cpu",
    vllm_version="0.32.0",
    backend_to_extend="CPU_ATTN",
    alignment_tokens=64,
    kernels=(),
    argv=("vllm", "serve", "m"),
    expect=EXPECT,
)
WORKER = "(Worker pid=9) INFO 11-30 06:51:47 [interface.py:40] "
LOG = f"""\
(APIServer pid=1) INFO 11-30 06:51:30 [config.py:688] Mamba cache mode is set to 'align' for M by \
default when prefix caching is enabled
{WORKER}hwtune[a1] registered backend=CPU_ATTN class=X alignment=64 kernels=k1
{WORKER}Setting attention block size to 832 tokens to ensure that attention page size is >= mamba \
page size.
{WORKER}Padding mamba page size by 6.26% to ensure that mamba page size and attention page size \
are exactly equal.
(APIServer pid=1) INFO:     Application startup complete.
"""


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    write_plan(PLAN, tmp_path)
    (tmp_path / "server.log").write_text(LOG, encoding="utf-8")
    (tmp_path / "status.json").write_text('{"state": "ready", "exit_code": null}', encoding="utf-8")
    return tmp_path


def _count(run_dir: Path, nonce: str, calls: int) -> None:
    counters = CounterFile(run_dir, nonce)
    counters.view[counters.slot("k1", "hit")] += calls


def test_right_after_the_start_hits_are_skipped(run_dir: Path) -> None:
    evidence = collect(run_dir)
    report = check(evidence, PLAN.expect, require_kernel_hits=False)
    assert report.passed
    (kernel,) = [item for item in report.checks if item.name == "kernel:k1"]
    assert (kernel.status, kernel.reason) == ("skipped", "no request served yet")


def test_a_counted_call_is_a_hit(run_dir: Path) -> None:
    _count(run_dir, "a1", 3)
    evidence = collect(run_dir)
    assert check(evidence, PLAN.expect, require_kernel_hits=True).passed


def test_calls_of_another_run_are_no_evidence(run_dir: Path) -> None:
    _count(run_dir, "b2", 3)
    evidence = collect(run_dir)
    assert not check(evidence, PLAN.expect, require_kernel_hits=True).passed


@pytest.mark.parametrize("counted", [False, True])
def test_a_log_of_another_run_proves_nothing(run_dir: Path, counted: bool) -> None:
    if counted:
        _count(run_dir, "a1", 3)
    (run_dir / "server.log").write_text(LOG.replace("hwtune[a1]", "hwtune[b2]"), encoding="utf-8")
    evidence = collect(run_dir)
    report = check(evidence, PLAN.expect, require_kernel_hits=False, diagnoses=load_diagnoses())
    assert [cause.id for cause in report.failed[0].diagnosis] == ["log_of_another_run"]
    assert [(item.name, item.reason) for item in report.failed] == [
        ("plugin", "the log is of another run (nonce b2); this run's is a1")
    ]
    assert {item.name for item in report.checks if item.status == "passed"} <= {"kernel:k1"}
    assert "another run" in answers(evidence, report)[0].answer


def test_a_log_that_shows_this_run_may_quote_another(run_dir: Path) -> None:
    other = LOG.splitlines()[1].replace("hwtune[a1]", "hwtune[b2]")
    (run_dir / "server.log").write_text(f"{LOG}{other}\n", encoding="utf-8")
    assert check(collect(run_dir), PLAN.expect, require_kernel_hits=False).passed


def test_one_of_several_logs_of_another_run_spoils_the_facts(run_dir: Path) -> None:
    other = run_dir / "other.log"
    other.write_text(LOG.replace("hwtune[a1]", "hwtune[b2]"), encoding="utf-8")
    evidence = collect(run_dir, log_paths=[run_dir / "server.log", other])
    assert evidence.other_runs == ("b2",)


def test_metrics_of_the_run_directory_are_read(run_dir: Path) -> None:
    text = 'vllm:cache_config_info{block_size="832",mamba_block_size="832"} 1.0\n'
    (run_dir / "metrics.txt").write_text(text, encoding="utf-8")
    evidence = collect(run_dir)
    assert evidence.value("mamba_block_size") == 832
    assert evidence.places("mamba_block_size")[0].file == str(run_dir / "metrics.txt")


def test_metrics_just_scraped_outrank_the_file(run_dir: Path) -> None:
    (run_dir / "metrics.txt").write_text("vllm:x 1\n", encoding="utf-8")
    text = 'vllm:cache_config_info{num_gpu_blocks="7"} 1.0'
    assert collect(run_dir, metrics_text=text).value("num_gpu_blocks") == 7


def test_a_server_that_died_before_its_first_line(run_dir: Path) -> None:
    (run_dir / "server.log").write_text("", encoding="utf-8")
    (run_dir / "status.json").write_text(
        '{"state": "died", "exit_code": 127, "reason": "no such program"}', encoding="utf-8"
    )
    report = check(collect(run_dir), PLAN.expect, require_kernel_hits=False)
    assert report.checks[0].status == "failed"
    assert "no such program" in report.checks[0].reason


def test_logs_named_explicitly_replace_the_run_directorys(run_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.log"
    other.write_text("a line\n", encoding="utf-8")
    assert collect(run_dir, log_paths=[other]).files == (str(other),)


def test_a_directory_without_a_plan_can_still_be_read(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(LOG, encoding="utf-8")
    evidence = collect(tmp_path)
    assert (evidence.plan, evidence.nonce) == (None, "a1")
    assert "no kernel counters were written" in evidence.notes[0]


@pytest.fixture
def killed() -> Iterator[int]:
    """Process id of a process that was killed and not yet buried."""
    process = subprocess.Popen(["sleep", "60"])
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    yield process.pid
    process.wait()


def _health(run_dir: Path, state: str, owner: int, *, answers: bool = False) -> tuple[str, str]:
    """The first failed check and its reason."""
    text = json.dumps({"state": state, "owner_pid": owner})
    (run_dir / "status.json").write_text(text, encoding="utf-8")
    evidence = collect(run_dir, metrics_text="vllm:x 1" if answers else None)
    failed = check(evidence, None, require_kernel_hits=False).failed
    return (failed[0].name, failed[0].reason) if failed else ("", "")


def test_a_launcher_that_was_killed_did_not_keep_its_server(run_dir: Path, killed: int) -> None:
    gone = f"hwtune (pid {killed}) is gone; it was killed"
    assert _health(run_dir, "ready", killed) == ("health", f"{gone}, and the server with it")
    (run_dir / "server.log").write_text("a line\n", encoding="utf-8")
    assert _health(run_dir, "ready", killed) == ("startup", gone)
    assert _health(run_dir, "starting", killed) == ("startup", gone)


def test_a_process_id_that_nobody_has_is_gone(run_dir: Path) -> None:
    assert _health(run_dir, "ready", 2**22 + 1)[0] == "health"


def test_a_launcher_that_runs_or_ended_in_order_is_not_gone(run_dir: Path, killed: int) -> None:
    assert _health(run_dir, "ready", os.getpid()) == ("", "")
    assert _health(run_dir, "stopped", killed) == ("", "")
    assert _health(run_dir, "ready", killed, answers=True) == ("", "")


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '"x"', "\x00"])
def test_a_damaged_status_is_bad_input(run_dir: Path, text: str) -> None:
    (run_dir / "status.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"status\.json"):
        collect(run_dir)


def test_a_missing_run_directory_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such run directory"):
        collect(tmp_path / "absent")


def test_the_plan_round_trips_into_evidence(run_dir: Path) -> None:
    plan = collect(run_dir).plan
    assert plan is not None
    assert json.loads((run_dir / "plan.json").read_text(encoding="utf-8"))["nonce"] == plan.nonce
