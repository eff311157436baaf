"""``hwtune simulate --against``: the prediction of a real run, held against its counters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hwtune.cli.derive_page import local_model
from hwtune.domain.bench import RequestRecord
from hwtune.domain.check_kernels import tallies
from hwtune.domain.errors import InputError
from hwtune.domain.evidence import Evidence
from hwtune.domain.launch import Arm, LaunchPlan
from hwtune.domain.page_options import profile_deployment
from hwtune.domain.scheduler.against import (
    Comparison,
    RunFacts,
    compare_counts,
    items_of_records,
    preceded,
)
from hwtune.domain.scheduler.question import Question, predict
from hwtune.domain.scheduler.server_setup import ServerQuestion
from hwtune.domain.scheduler.workloads import Duration, WorkItem, Workload
from hwtune.domain.vllm_flags import deployment_from_flags
from hwtune.domain.workload import Design
from hwtune.io.model_config import load_model
from hwtune.io.profiles import load_profile
from hwtune.io.records import DESIGN_FILE, read_design, read_requests
from hwtune.io.run_evidence import collect


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRun:
    """One server (or several in a row) of a real run."""

    arm: Arm
    plan: LaunchPlan
    evidence: tuple[Evidence, ...]
    records: tuple[RequestRecord, ...]
    design: Design


def compare_run(run_dir: Path, duration: Duration | None) -> tuple[Comparison, ...]:
    """One comparison per arm that left counters.

    Raises:
        InputError: not a run of ab-bench, or its evidence is missing or damaged.
        UsageError: an open loop needs a duration of steps.
    """
    if not (run_dir / DESIGN_FILE).exists():
        message = (
            f"{run_dir}: no {DESIGN_FILE}; --against reads the run directory of ab-bench serving"
        )
        raise InputError(message)
    design, records = read_design(run_dir), read_requests(run_dir)
    runs = [
        run for arm in ("baseline", "candidate") if (run := _served(arm, design, run_dir, records))
    ]
    if not runs:
        message = f"{run_dir}: no server of this run left a plan and counters"
        raise InputError(message)
    return tuple(_compare(run, duration) for run in runs)


def _served(
    arm: Arm, design: Design, run_dir: Path, records: tuple[RequestRecord, ...]
) -> ServedRun | None:
    from hwtune.adapters.load.disk_evidence import answering_arm, server_dirs

    found = [collect(path) for path in server_dirs(arm, design, run_dir, records)]
    plans = [evidence.plan for evidence in found if evidence.plan is not None]
    if not plans or not any(evidence.has_counters for evidence in found):
        return None
    return ServedRun(
        arm=arm,
        plan=plans[0],
        evidence=tuple(found),
        records=tuple(record for record in records if answering_arm(record) == arm),
        design=design,
    )


def _compare(run: ServedRun, duration: Duration | None) -> Comparison:
    items = items_of_records(run.records)
    open_loop = run.design.arrival != "closed"
    workload = Workload(
        items=items,
        pacing="timed" if open_loop else "closed loop",
        concurrency=run.design.concurrency,
        first_alone=True,
        title=f"{len(items)} requests of the {run.arm}",
    )
    foreign = _foreign(run, len(items))
    notes = []
    if foreign == 1 and run.design.mode == "given urls":
        workload, foreign = preceded(workload, _probe(run.plan)), 0
        notes.append("the one request beyond the records is taken to be the probe of hwtune serve")
    server = _question(run)
    prediction = predict(
        Question(
            server=server,
            workload=workload,
            duration=duration,
            observed=run.plan.arm == "baseline",
        )
    )
    counts = tuple(count for evidence in run.evidence for count in evidence.counts)
    layers = _layers(run) or prediction.setup.attention_layers or 1
    comparison = compare_counts(
        prediction.forecast,
        tallies(replace(run.evidence[0], counts=counts)),
        RunFacts(
            arm=run.arm,
            concurrency=run.design.concurrency,
            open_loop=open_loop,
            failed_requests=sum(record.failure is not None for record in run.records),
            foreign_requests=foreign,
            graphs=prediction.setup.graphs.mode != "NONE",
            calls_per_step=layers * prediction.setup.ranks,
        ),
    )
    return replace(comparison, notes=(*notes, *prediction.notes))


def _question(run: ServedRun) -> ServerQuestion:
    """The server as its plan and its log say it was."""
    plan, seen = run.plan, run.evidence[0]
    deployment, _ = deployment_from_flags(plan.argv)
    profile = replace(load_profile(plan.profile), kernels=plan.kernels)
    return ServerQuestion(
        model=load_model(local_model(plan.model)),
        profile=profile,
        deployment=replace(profile_deployment(deployment, profile), version=plan.vllm_version),
        flags=plan.argv,
        arm=plan.arm,
        page_tokens=plan.expect.block_size,
        budget_tokens=_whole(seen, "max_num_batched_tokens"),
        num_blocks=_whole(seen, "num_gpu_blocks"),
    )


def _whole(evidence: Evidence, fact: str) -> int | None:
    value = evidence.value(fact)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _layers(run: ServedRun) -> int:
    """Attention layers that announced themselves to one process of the first server."""
    marks = [mark for mark in run.evidence[0].marks if mark.kind == "layer bound"]
    return len({mark.fields.get("name") for mark in marks})


def _foreign(run: ServedRun, answered: int) -> int | None:
    served = [evidence.value("requests_served") for evidence in run.evidence]
    if not all(isinstance(value, (int, float)) for value in served):
        return None
    total = sum(int(value) for value in served if isinstance(value, (int, float)))
    return max(0, total - answered)


def _probe(plan: LaunchPlan) -> WorkItem:
    from hwtune.adapters.vllm.probe import PROBE_OUTPUT_TOKENS, probe_tokens

    return WorkItem(id="probe", prompt_tokens=probe_tokens(plan), output_tokens=PROBE_OUTPUT_TOKENS)
