"""The runner: proofs, warm-up, death, resume. The servers are mocks with known timing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from hwtune.adapters.load.mock_frames import Behaviour
from hwtune.adapters.load.mock_server import MockServer
from hwtune.adapters.load.mock_thread import running_mock
from hwtune.adapters.load.runner import Progress, Runner
from hwtune.domain.bench import ARMS, ArmProof, RequestRecord
from hwtune.domain.compare import compare
from hwtune.domain.errors import ExternalFailureError, InfeasibleError
from hwtune.domain.launch import Arm
from hwtune.domain.pairing import next_attempts
from hwtune.domain.validity import marker_gates
from hwtune.domain.workload import Design, Mode, Tier
from hwtune.io.records import RequestJournal, read_requests

pytestmark = pytest.mark.usefixtures("on_time")

FAST = Behaviour(ttft_s=0.001, tpot_s=0.0001)
DESIGN = Design(
    model="m",
    profile="cpu",
    flags=(),
    mode="concurrent servers",
    vocab_size=1000,
    tiers=(
        Tier(name="a", least_tokens=20, most_tokens=40),
        Tier(name="b", least_tokens=40, most_tokens=80),
    ),
    pairs=2,
    prompts_per_tier=4,
    output_tokens=4,
    concurrency=1,
    warm_up=1,
    request_timeout_s=5,
)


class FakeArm:
    """An arm on the mock server that counts what is asked of it."""

    def __init__(self, arm: Arm, url: str, server: MockServer, passed: bool = True) -> None:
        self.arm: Arm = arm
        self.server = server
        self.calls: list[str] = []
        self._url = url
        self._passed = passed

    def start(self) -> tuple[str, ...]:
        self.calls.append("start")
        return (self._url,)

    def verify(self, *, require_kernel_hits: bool) -> ArmProof:
        self.calls.append("verify hits" if require_kernel_hits else "verify")
        return ArmProof(arm=self.arm, passed=self._passed, summary="as told")

    def cause_of_death(self) -> str | None:
        return "out of memory (server.log:7)"

    def stop(self) -> None:
        self.calls.append("stop")


@contextmanager
def _arms(
    candidate: Behaviour = FAST, candidate_passes: bool = True
) -> Iterator[dict[Arm, FakeArm]]:
    with running_mock(FAST) as (url_a, server_a), running_mock(candidate) as (url_b, server_b):
        yield {
            "baseline": FakeArm("baseline", url_a, server_a),
            "candidate": FakeArm("candidate", url_b, server_b, candidate_passes),
        }


def _run(
    arms: dict[Arm, FakeArm],
    run_dir: Path,
    mode: Mode = "concurrent servers",
    design: Design = DESIGN,
) -> Progress:
    earlier = read_requests(run_dir)
    with closing(RequestJournal(run_dir)) as journal:
        design = replace(design, mode=mode)
        return Runner(design, arms, journal, earlier, lambda text: None).run()


def _measured(run_dir: Path) -> list[RequestRecord]:
    return [record for record in read_requests(run_dir) if record.phase == "measured"]


def test_both_arms_answer_the_same_prompts_and_no_prompt_comes_twice(tmp_path: Path) -> None:
    with _arms() as arms:
        _run(arms, tmp_path)
        sent = {arm: [tuple(b["prompt"]) for b in arms[arm].server.bodies] for arm in ARMS}
    assert sorted(sent["baseline"]) == sorted(sent["candidate"])
    assert len(set(sent["baseline"])) == len(sent["baseline"]) == 2 * (4 + 1)
    by_arm = {arm: {r.prompt_id for r in _measured(tmp_path) if r.arm == arm} for arm in ARMS}
    assert by_arm["baseline"] == by_arm["candidate"] and len(by_arm["baseline"]) == 8


def test_warm_up_comes_first_and_is_no_measurement(tmp_path: Path) -> None:
    with _arms() as arms:
        _run(arms, tmp_path)
    phases = [record.phase for record in read_requests(tmp_path)]
    assert phases == ["warm-up"] * 4 + ["measured"] * 16
    warm = {r.prompt_id for r in read_requests(tmp_path) if r.phase == "warm-up"}
    assert warm.isdisjoint({r.prompt_id for r in _measured(tmp_path)})


def test_markers_are_checked_after_warm_up_and_again_at_the_end(tmp_path: Path) -> None:
    with _arms() as arms:
        progress = _run(arms, tmp_path)
        assert arms["candidate"].calls == ["start", "verify", "verify hits", "stop"]
    assert all(proof.passed for proof in progress.proofs.values())


def test_an_arm_that_is_not_what_it_should_be_stops_the_run_before_it_costs_time(
    tmp_path: Path,
) -> None:
    with _arms(candidate_passes=False) as arms:
        progress = _run(arms, tmp_path)
        assert arms["candidate"].calls[-1] == "stop"
    assert _measured(tmp_path) == []
    comparison = compare(DESIGN, progress.records, marker_gates(progress.proofs.values()))
    assert comparison.answer_is_no
    assert "markers of the candidate: as told" in comparison.tiers[0].metrics[0].verdict.text


def test_with_restart_every_block_has_a_server_of_its_own(tmp_path: Path) -> None:
    with _arms() as arms:
        _run(arms, tmp_path, "restart per block")
        assert arms["baseline"].calls.count("start") == 4
        assert "verify hits" in arms["baseline"].calls
    assert len(_measured(tmp_path)) == 16


def test_a_dead_server_ends_the_run_keeps_what_is_done_and_stops_both_arms(tmp_path: Path) -> None:
    with _arms(Behaviour(ttft_s=0.001, tpot_s=0.0001, fault="die", fault_every=6)) as arms:
        with pytest.raises(ExternalFailureError, match=r"gone in tier .* \(out of memory \(server"):
            _run(arms, tmp_path)
        assert all(arm.calls[-1] == "stop" for arm in arms.values())
    kept = _measured(tmp_path)
    assert len([record for record in kept if record.failure is None]) >= 3
    assert {record.failure for record in kept} == {None, "connect error"}


def test_a_resume_measures_only_what_is_missing_with_fresh_prompts(tmp_path: Path) -> None:
    mortal = Behaviour(ttft_s=0.001, tpot_s=0.0001, fault="die", fault_every=6)
    with _arms(mortal) as arms, pytest.raises(ExternalFailureError):
        _run(arms, tmp_path)
    first = _measured(tmp_path)
    missing = next_attempts(DESIGN, first)
    assert 0 < len(missing) <= 4 and 1 in missing.values()
    with _arms() as arms:
        _run(arms, tmp_path)
        served = [tuple(body["prompt"]) for body in arms["baseline"].server.bodies]
    assert len(served) == 2 + 2 * len(missing)
    assert next_attempts(DESIGN, read_requests(tmp_path)) == {}
    again = [r for r in _measured(tmp_path) if r.attempt == 1]
    assert {r.prompt_id for r in again}.isdisjoint({r.prompt_id for r in first})
    tiers = compare(DESIGN, read_requests(tmp_path), ()).tiers
    assert [tier.pairs_done for tier in tiers] == [2, 2]
    assert not any(gate.state == "failed" for tier in tiers for gate in tier.gates)


def test_a_failure_of_a_living_server_is_not_measured_again(tmp_path: Path) -> None:
    with _arms(Behaviour(ttft_s=0.001, tpot_s=0.0001, fault="http 500", fault_every=5)) as arms:
        progress = _run(arms, tmp_path)
    assert next_attempts(DESIGN, progress.records) == {}
    assert compare(DESIGN, progress.records, ()).answer_is_no


def test_a_tier_longer_than_the_server_allows_is_refused_with_the_flag_to_set(
    tmp_path: Path,
) -> None:
    short = Behaviour(ttft_s=0.001, tpot_s=0.0001, max_model_len=64)
    with _arms(short) as arms:
        with pytest.raises(InfeasibleError, match="--max-model-len 80"):
            _run(arms, tmp_path)
        assert all(arm.calls[-1] == "stop" for arm in arms.values())


def test_a_slower_candidate_is_found_slower(tmp_path: Path) -> None:
    design = replace(DESIGN, tiers=DESIGN.tiers[:1], pairs=6, prompts_per_tier=6)
    with _arms(Behaviour(ttft_s=0.02, tpot_s=0.005)) as arms:
        progress = _run(arms, tmp_path, design=design)
    kinds = {r.verdict.kind for r in compare(design, progress.records, ()).tiers[0].metrics}
    # Where the machine is full, single metrics may stay undecided.
    assert {"slower"} <= kinds <= {"slower", "inconclusive"}


def test_an_aa_phase_asks_the_baseline_twice_with_other_prompts_of_the_same_lengths(
    tmp_path: Path,
) -> None:
    with _arms() as arms:
        progress = _run(arms, tmp_path, design=replace(DESIGN, aa_pairs=2))
        assert len(arms["candidate"].server.bodies) == 2 + 8
    noise = [record for record in progress.records if record.phase == "a/a"]
    assert len(noise) == 16
    assert len({record.prompt_id for record in noise}) == 16
    lengths = {arm: sorted(r.prompt_tokens or 0 for r in noise if r.arm == arm) for arm in ARMS}
    assert lengths["baseline"] == lengths["candidate"]
    order = [record.phase for record in progress.records if record.phase != "warm-up"]
    assert order == ["a/a"] * 16 + ["measured"] * 16


@pytest.mark.parametrize(
    ("mode", "pauses"), [("concurrent servers", [1.5] * 8), ("restart per block", [])]
)
def test_two_servers_that_are_both_up_rest_before_every_block(
    tmp_path: Path, mode: Mode, pauses: list[float]
) -> None:
    slept: list[float] = []
    design = replace(DESIGN, mode=mode, settle_s=1.5)
    with _arms() as arms, closing(RequestJournal(tmp_path)) as journal:
        Runner(design, arms, journal, (), lambda text: None, sleep=slept.append).run()
    assert slept == pauses


class Scripted(FakeArm):
    """Passes or fails each marker check as written down: (markers, kernel hits) per server."""

    script: tuple[tuple[bool, bool], ...] = ()

    def verify(self, *, require_kernel_hits: bool) -> ArmProof:
        markers, hits = self.script[self.calls.count("start") - 1]
        passed = markers and (hits or not require_kernel_hits)
        return ArmProof(arm=self.arm, passed=passed, summary=f"{markers} {hits}")


@pytest.mark.parametrize(
    ("script", "passed"),
    [
        (((True, False), (True, True), (True, False), (True, False)), True),
        (((True, False),) * 4, False),
        (((True, True), (False, True), (True, True), (True, True)), False),
        (((False, False), (True, True), (True, True), (True, True)), False),
    ],
)
def test_with_restarts_every_server_must_be_right_and_one_must_hit_the_kernels(
    tmp_path: Path, script: tuple[tuple[bool, bool], ...], passed: bool
) -> None:
    with _arms() as arms:
        candidate = Scripted("candidate", arms["candidate"].start()[0], arms["candidate"].server)
        candidate.script = script
        arms["candidate"] = candidate
        progress = _run(arms, tmp_path, "restart per block")
    assert progress.proofs["candidate"].passed is passed
