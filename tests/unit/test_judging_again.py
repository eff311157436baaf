"""Judging a run again: from all its servers' evidence, and never greener than before."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hwtune.adapters.load import disk_evidence
from hwtune.adapters.load.arms import verify_arm
from hwtune.adapters.load.session import Session
from hwtune.domain.bench import ARMS, ArmProof, Comparison, Gate, RequestRecord
from hwtune.domain.errors import InputError
from hwtune.domain.launch import Arm, Expectation, LaunchPlan
from hwtune.domain.so_far import BlockNews
from hwtune.domain.workload import Design, Tier, prompts_in_pair
from hwtune.io.plans import write_plan
from hwtune.io.records import RequestJournal, write_comparison, write_design

DESIGN = Design(
    model="m",
    profile="cpu",
    flags=(),
    mode="concurrent servers",
    vocab_size=1000,
    tiers=(Tier(name="a", least_tokens=20, most_tokens=40),),
    pairs=6,
    prompts_per_tier=6,
    output_tokens=4,
    concurrency=1,
)
NOTHING = Expectation(
    block_size=None,
    padding_pct=None,
    enable_prefix_caching=None,
    mamba_cache_mode=None,
    backend=None,
    kernels=(),
)
Verify = Callable[[Path, bool], bool]


def _record(arm: Arm, pair: int, at: float) -> RequestRecord:
    return RequestRecord(
        arm=arm, phase="measured", tier="a", pair=pair, prompt=0, prompt_id=str(pair),
        started_unix_s=at, ended_unix_s=at + 1, ttft_s=0.1 if arm == "baseline" else 0.05,
        e2el_s=0.4, chunk_times_s=(0.1 if arm == "baseline" else 0.05, 0.4), prompt_tokens=30,
        output_tokens=4, text="some words", finish_reason="length",
    )  # fmt: skip


def _plan(arm: Arm, **changes: object) -> LaunchPlan:
    plan = LaunchPlan(
        run_id="r", nonce="a1", arm=arm, model="m", served_model_name="m", profile="cpu",
        device="cpu", vllm_version="0.32.0", backend_to_extend="CPU_ATTN", alignment_tokens=64,
        kernels=(), argv=("vllm",), expect=NOTHING,
    )  # fmt: skip
    return replace(plan, **changes)  # type: ignore[arg-type]


def _server(run_dir: Path, name: str, started: str, **changes: object) -> None:
    arm: Arm = "baseline" if name.startswith("baseline") else "candidate"
    path = run_dir / "arms" / name
    path.mkdir(parents=True)
    write_plan(_plan(arm, **changes), path)
    (path / "status.json").write_text(json.dumps({"state": "stopped", "started_at": started}))


def _finished(run_dir: Path, design: Design = DESIGN) -> None:
    assert prompts_in_pair(design, 0) == 1
    write_design(design, run_dir)
    journal = RequestJournal(run_dir)
    for pair in range(6):
        for arm in ARMS:
            journal.append(_record(arm, pair, 1000.0 + pair * 100))
    journal.close()


def _both_servers(run_dir: Path) -> None:
    for arm in ARMS:
        _server(run_dir, arm, "1970-01-01T00:16:00+00:00")


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch) -> Callable[[Verify], list[str]]:
    """Replaces the marker check; returns the names of the directories it is asked about."""

    def install(passes: Verify) -> list[str]:
        asked: list[str] = []

        def check(arm: Arm, run_dir: Path, *, hits: bool, replaced: bool) -> ArmProof:
            asked.append(run_dir.name)
            return ArmProof(arm=arm, passed=passes(run_dir, hits), summary=run_dir.name)

        monkeypatch.setattr(disk_evidence, "verify_arm", check)
        return asked

    return install


def _again(run_dir: Path, design: Design = DESIGN) -> Comparison:
    comparison = Session(design, run_dir, resumed=True).judge(keep_stored=True)
    assert comparison is not None
    return comparison


def _failed(comparison: Comparison) -> list[str]:
    return [gate.name for gate in comparison.red_gates]


def _fine(run_dir: Path, hits: bool) -> bool:
    return True


def test_with_all_evidence_in_place_the_run_is_judged(
    tmp_path: Path, verify: Callable[[Verify], list[str]]
) -> None:
    verify(_fine)
    _finished(tmp_path)
    _both_servers(tmp_path)
    comparison = _again(tmp_path)
    assert _failed(comparison) == []
    assert comparison.tiers[0].metrics[0].verdict.kind == "faster"
    assert [gate.state for gate in comparison.gates] == ["passed"] * 3 + ["not checked"] * 2


def test_evidence_that_was_promised_and_is_gone_is_red(tmp_path: Path) -> None:
    _finished(tmp_path)
    assert _failed(_again(tmp_path)) == [
        "markers of the baseline",
        "markers of the candidate",
        "arms differ only in what was declared",
    ]
    assert _again(tmp_path).tiers[0].metrics[0].ratio is None


def test_a_named_run_directory_that_is_gone_is_red(tmp_path: Path) -> None:
    design = replace(
        DESIGN,
        mode="given urls",
        profile=None,
        baseline_urls=("http://h:1",),
        candidate_urls=("http://h:2",),
        candidate_run=str(tmp_path / "gone"),
    )
    _finished(tmp_path, design)
    comparison = _again(tmp_path, design)
    assert _failed(comparison) == ["markers of the candidate"]
    assert comparison.gates[0].state == "not checked"


def test_arms_that_differ_beyond_what_was_declared_stay_red(
    tmp_path: Path, verify: Callable[[Verify], list[str]]
) -> None:
    verify(_fine)
    _finished(tmp_path)
    _both_servers(tmp_path)
    _server(tmp_path, "candidate-2", "1970-01-01T00:20:00+00:00", argv=("vllm", "--enforce-eager"))
    assert _failed(_again(tmp_path)) == ["arms differ only in what was declared"]


def test_the_servers_of_the_first_session_count_and_those_that_never_answered_do_not(
    tmp_path: Path, verify: Callable[[Verify], list[str]]
) -> None:
    asked = verify(lambda path, hits: path.name != "candidate")
    _finished(tmp_path)
    _server(tmp_path, "baseline", "1970-01-01T00:00:00+00:00")
    _server(tmp_path, "baseline-2", "1970-01-01T00:16:00+00:00")
    _server(tmp_path, "candidate", "1970-01-01T00:16:00+00:00")
    _server(tmp_path, "candidate-2", "1970-01-01T00:20:00+00:00")
    assert _failed(_again(tmp_path)) == ["markers of the candidate"]
    assert "baseline" not in asked and "baseline-2" in asked


@pytest.mark.parametrize(("hit", "red"), [("candidate", 0), ("none", 1)])
def test_one_server_of_an_arm_must_have_hit_the_kernels(
    tmp_path: Path, verify: Callable[[Verify], list[str]], hit: str, red: int
) -> None:
    verify(lambda path, hits: not hits or path.name in (hit, "baseline"))
    _finished(tmp_path)
    _both_servers(tmp_path)
    _server(tmp_path, "candidate-2", "1970-01-01T00:20:00+00:00")
    assert len(_failed(_again(tmp_path))) == red


@pytest.mark.parametrize("where", ["run", "tier"])
def test_a_gate_stored_as_failed_stays_failed(
    tmp_path: Path, verify: Callable[[Verify], list[str]], where: str
) -> None:
    verify(_fine)
    _finished(tmp_path)
    _both_servers(tmp_path)
    good = _again(tmp_path)
    red = (Gate(name="markers of the baseline", state="failed", evidence="as it was"),)
    bad = replace(good, gates=red)
    if where == "tier":
        bad = replace(good, tiers=(replace(good.tiers[0], gates=red),))
    write_comparison(bad, tmp_path)
    again = _again(tmp_path)
    assert len(_failed(again)) == 1 and "as it was (as stored)" in again.red_gates[0].evidence
    assert {metric.verdict.kind for metric in again.tiers[0].metrics} == {"not comparable"}
    write_comparison(again, tmp_path)
    assert _again(tmp_path) == again


def test_a_damaged_stored_comparison_is_one_line(
    tmp_path: Path, verify: Callable[[Verify], list[str]]
) -> None:
    verify(_fine)
    _finished(tmp_path)
    _both_servers(tmp_path)
    (tmp_path / "comparison.json").write_text("[]")
    with pytest.raises(InputError, match=r"comparison\.json: cannot be read"):
        _again(tmp_path)


@pytest.mark.parametrize(("replaced", "passed"), [(True, True), (False, False)])
def test_a_server_that_died_is_excused_when_another_took_over(
    tmp_path: Path, replaced: bool, passed: bool
) -> None:
    _server(tmp_path, "baseline", "1970-01-01T00:00:00+00:00")
    path = tmp_path / "arms" / "baseline"
    status = {"state": "ready", "owner_pid": 2**22 + 1, "started_at": "1970-01-01T00:00:00+00:00"}
    (path / "status.json").write_text(json.dumps(status))
    (path / "server.log").write_text(
        "(APIServer pid=1) INFO 11-30 06:51:30 [api_server.py:1] vLLM API server version 0.32.0\n"
        "(Worker pid=9) INFO 11-30 06:51:47 [plugin.py:40] hwtune[a1] registered backend=CPU_ATTN "
        "class=X alignment=64 kernels=a\n"
        "(APIServer pid=1) INFO:     Application startup complete.\n"
    )
    proof = verify_arm("baseline", path, hits=False, replaced=replaced)
    assert proof.passed is passed, proof.summary
    assert "is gone" in proof.summary


class Lines:
    """A watcher that keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def line(self, text: str) -> None:
        self.said.append(text)

    def block(self, news: BlockNews) -> None:
        self.said.append(news.line)


def test_a_resume_with_nothing_missing_starts_no_server(
    tmp_path: Path, verify: Callable[[Verify], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = verify(_fine)
    _finished(tmp_path)
    _both_servers(tmp_path)
    monkeypatch.setattr(Session, "_arms", lambda *_: pytest.fail("servers are asked for"))
    session = Session(DESIGN, tmp_path, resumed=True)
    watcher = Lines()
    session.run(1.0, watcher)
    comparison = session.judge()
    assert comparison is not None and not comparison.red_gates
    assert watcher.said == ["nothing is missing: judging what is there"]
    assert set(asked) == {"baseline", "candidate"}
