"""``hwtune simulate --against``: the prediction of a real run, held against its counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hwtune.cli.derive_page import local_model
from hwtune.cli.simulate_workload import WorkloadOptions, duration_of, workload_of
from hwtune.domain.attn_states import attn_states
from hwtune.domain.bench import ARMS, RequestRecord
from hwtune.domain.check_kernels import tallies
from hwtune.domain.errors import InputError, UsageError
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
from hwtune.io.plans import PLAN_FILE
from hwtune.io.profiles import load_profile
from hwtune.io.records import DESIGN_FILE, read_design, read_requests
from hwtune.io.run_evidence import collect


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRun:
    """One server (or several in a row, of one arm) and what was sent to it."""

    plan: LaunchPlan
    evidence: tuple[Evidence, ...]
    workload: Workload
    failed_requests: int
    probed: bool
    """Whether ``hwtune serve`` started it, which sends a request of its own."""


def compare_run(run_dir: Path, options: WorkloadOptions) -> tuple[Comparison, ...]:
    """One comparison per arm of a run of ab-bench, or one for a server of ``hwtune serve``.

    Args:
        run_dir: of either.
        options: how long steps last, for an open loop; and for ``hwtune serve``, which records no
            requests, what was sent.

    Raises:
        InputError: not a run directory, or its evidence is missing or damaged.
        UsageError: what was sent is not known, or an open loop needs a duration of steps.
    """
    if (run_dir / DESIGN_FILE).exists():
        design, records = read_design(run_dir), read_requests(run_dir)
        runs = [_benched(arm, design, run_dir, records) for arm in ARMS]
    elif (run_dir / PLAN_FILE).exists():
        runs = [_served(run_dir, options)]
    else:
        message = f"{run_dir}: neither {DESIGN_FILE} nor {PLAN_FILE}: no run of ab-bench or serve"
        raise InputError(message)
    found = [run for run in runs if run is not None]
    if not found:
        message = f"{run_dir}: no server of this run left a plan and counters"
        raise InputError(message)
    return tuple(_compare(run, duration_of(options)) for run in found)


def _benched(
    arm: Arm, design: Design, run_dir: Path, records: Sequence[RequestRecord]
) -> ServedRun | None:
    from hwtune.adapters.load.disk_evidence import answering_arm, server_dirs

    mine = [record for record in records if answering_arm(record) == arm]
    items = items_of_records(mine)
    workload = Workload(
        items=items,
        pacing="closed loop" if design.arrival == "closed" else "timed",
        concurrency=design.concurrency,
        first_alone=True,
        title=f"{len(items)} requests of the {arm}",
    )
    return _run(
        [collect(path) for path in server_dirs(arm, design, run_dir, records)],
        workload,
        failed=sum(record.failure is not None for record in mine),
        probed=design.mode == "given urls",
    )


def _served(run_dir: Path, options: WorkloadOptions) -> ServedRun | None:
    if not (options.given or options.tiers or options.arrivals):
        message = (
            f"{run_dir}: hwtune serve records no requests; say what was sent with --request"
            " PROMPT:OUTPUT, one after the other, and --concurrency"
        )
        raise UsageError(message)
    # One after the other is what --request means here; elsewhere it has no closed loop.
    workload = workload_of(replace(options, concurrency=1) if options.given else options)
    if options.given:
        workload = replace(
            workload, pacing="closed loop", concurrency=options.concurrency, first_alone=True
        )
    return _run([collect(run_dir)], workload, failed=0, probed=True)


def _run(
    evidence: Sequence[Evidence], workload: Workload, *, failed: int, probed: bool
) -> ServedRun | None:
    plan = next((found.plan for found in evidence if found.plan is not None), None)
    if plan is None or not any(found.has_counters for found in evidence):
        return None
    return ServedRun(
        plan=plan,
        evidence=tuple(evidence),
        workload=workload,
        failed_requests=failed,
        probed=probed,
    )


def _compare(run: ServedRun, duration: Duration | None) -> Comparison:
    workload, foreign = run.workload, _foreign(run)
    notes = []
    if foreign and run.probed:
        workload, foreign = preceded(workload, _probe(run.plan)), foreign - 1
        notes.append("one request more than known is taken to be the probe of hwtune serve")
    prediction = predict(
        Question(
            server=_question(run),
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
            arm=run.plan.arm,
            concurrency=workload.concurrency or 1,
            open_loop=workload.pacing != "closed loop",
            failed_requests=run.failed_requests,
            foreign_requests=foreign,
            graphs=prediction.setup.graphs.mode != "NONE",
            calls_per_step=layers * prediction.setup.ranks,
            ranks=prediction.setup.ranks,
        ),
        attn_states(counts),
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


def _foreign(run: ServedRun) -> int | None:
    """Requests that the server answered and nobody told of; None when it did not say."""
    served = [evidence.value("requests_served") for evidence in run.evidence]
    if not all(isinstance(value, (int, float)) for value in served):
        return None
    total = sum(int(value) for value in served if isinstance(value, (int, float)))
    return max(0, total - len(run.workload.items))


def _probe(plan: LaunchPlan) -> WorkItem:
    from hwtune.adapters.vllm.probe import probe_tokens
    from hwtune.domain.planning_kernels import PROBE_OUTPUT_TOKENS

    return WorkItem(id="probe", prompt_tokens=probe_tokens(plan), output_tokens=PROBE_OUTPUT_TOKENS)
