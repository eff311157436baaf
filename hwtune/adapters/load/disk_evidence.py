"""What the servers of an A/B run left on disk: markers, hits and plans, over all its sessions."""

from __future__ import annotations

import datetime
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hwtune.adapters.load.arms import verify_arm
from hwtune.domain.bench import ARMS, ArmProof, Gate, RequestRecord
from hwtune.domain.errors import InputError
from hwtune.domain.json_text import parse_json
from hwtune.domain.launch import Arm, LaunchPlan
from hwtune.domain.server_compare import PAGE_FACTS, ServerComparison, compare_servers
from hwtune.domain.validity import gate, plan_difference_gate
from hwtune.domain.workload import Design
from hwtune.io.plans import PLAN_FILE, read_plan
from hwtune.io.run_dir import STATUS_FILE
from hwtune.io.run_evidence import collect

PLAN_GATE = "arms differ only in what was declared"


def proofs_on_disk(
    design: Design, run_dir: Path, records: Sequence[RequestRecord]
) -> dict[Arm, ArmProof]:
    """One proof per arm over every server that answered for it, whichever session started it.

    Evidence that the design promises and that is gone fails; a server of unknown origin has none.
    """
    return {arm: _proof(arm, design, server_dirs(arm, design, run_dir, records)) for arm in ARMS}


def server_dirs(
    arm: Arm, design: Design, run_dir: Path, records: Iterable[RequestRecord]
) -> list[Path]:
    """Run directories of an arm's servers, without those that never answered a request."""
    if design.mode == "given urls":
        named = _named(arm, design)
        return [Path(named)] if named else []
    found = [path for path in (run_dir / "arms").glob(f"{arm}*") if _number(path, arm)]
    found.sort(key=lambda path: _number(path, arm))
    times = [
        record.started_unix_s
        for record in records
        if record.failure is None and answering_arm(record) == arm
    ]
    starts = [_started(path) for path in found]
    return [
        path
        for path, start, end in zip(found, starts, [*starts, None][1:], strict=True)
        if start is None or any(start <= time < (end or time + 1.0) for time in times)
    ]


def arms_side_by_side(
    design: Design, run_dir: Path, records: Sequence[RequestRecord]
) -> ServerComparison | None:
    """What differs between the last servers of both arms; None when one left no evidence."""
    dirs = [server_dirs(arm, design, run_dir, records) for arm in ARMS]
    if not all(dirs):
        return None
    try:
        baseline, candidate = (collect(found[-1]) for found in dirs)
    except InputError:
        return None
    return compare_servers(baseline, candidate, declared=PAGE_FACTS)


def plan_gates(design: Design, run_dir: Path, records: Sequence[RequestRecord]) -> tuple[Gate, ...]:
    """The plans of all servers, compared with each other. None for servers of unknown origin."""
    if design.mode == "given urls" and not (design.baseline_run and design.candidate_run):
        return ()
    return (plans_gate(*(server_dirs(arm, design, run_dir, records) for arm in ARMS)),)


def plans_gate(baseline: Sequence[Path], candidate: Sequence[Path]) -> Gate:
    """The plans in the run directories of both arms, each pair compared; the worst of them."""
    try:
        plans = [[read_plan(path / PLAN_FILE) for path in paths] for paths in (baseline, candidate)]
    except InputError as error:
        return gate(PLAN_GATE, str(error), "")
    if not all(plans):
        return gate(PLAN_GATE, "the plan of an arm is missing", "")
    return _worst(*plans)


def _worst(baseline: Sequence[LaunchPlan], candidate: Sequence[LaunchPlan]) -> Gate:
    gates = itertools.starmap(plan_difference_gate, itertools.product(baseline, candidate))
    return min(gates, key=lambda found: found.state != "failed")


def _named(arm: Arm, design: Design) -> str | None:
    return design.baseline_run if arm == "baseline" else design.candidate_run


def answering_arm(record: RequestRecord) -> Arm:
    """Whose server answered: in the A/A phase the baseline's, under either label."""
    return "baseline" if record.phase == "a/a" else record.arm


def _number(path: Path, arm: Arm) -> int:
    """1 for ``baseline``, 2 for ``baseline-2``, 0 for anything else."""
    match = re.fullmatch(rf"{arm}(?:-(\d+))?", path.name)
    return int(match[1] or 1) if match else 0


def _started(path: Path) -> float | None:
    """When the server of a run directory was started; None when that is not known."""
    try:
        text = parse_json((path / STATUS_FILE).read_text(encoding="utf-8"))["started_at"]
        return datetime.datetime.fromisoformat(text).timestamp()
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _proof(arm: Arm, design: Design, run_dirs: Sequence[Path]) -> ArmProof:
    """Every server must be right, and one of them must have hit the kernels.

    A server that was ended after one tier need not have hit every kernel.
    """
    if not run_dirs:
        return _no_evidence(arm, design)
    proofs = _verify(arm, run_dirs, hits=False)
    wrong = next((proof for proof in proofs if not proof.passed), None)
    if wrong is not None:
        return wrong
    proofs = _verify(arm, run_dirs, hits=True)
    return next((proof for proof in reversed(proofs) if proof.passed), proofs[-1])


def _verify(arm: Arm, run_dirs: Sequence[Path], *, hits: bool) -> list[ArmProof]:
    proofs = []
    for path in run_dirs:
        try:
            proof = verify_arm(arm, path, hits=hits, replaced=path != run_dirs[-1])
        except InputError as error:
            summary = f"evidence is missing or damaged: {error}"
            proof = ArmProof(arm=arm, passed=False, summary=summary)
        proofs.append(proof)
    return proofs


def _no_evidence(arm: Arm, design: Design) -> ArmProof:
    if design.mode == "given urls" and design.profile is None:
        return ArmProof(arm=arm, passed=None, summary="no run directory was given")
    summary = "no server left the evidence that the design promises"
    return ArmProof(arm=arm, passed=False, summary=summary)


def worse(live: Mapping[Arm, ArmProof], disk: Mapping[Arm, ArmProof]) -> list[ArmProof]:
    """Per arm what is on disk, unless the live check was red."""
    return [live[arm] if arm in live and live[arm].passed is False else disk[arm] for arm in ARMS]
