"""hwtune simulate: which steps the scheduler will make, before anything runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hwtune.cli import simulate_options as option
from hwtune.domain.errors import ANSWER_IS_NO, UsageError
from hwtune.io.records import DESIGN_FILE
from hwtune.report.tables import Format

if TYPE_CHECKING:
    from hwtune.cli.simulate_workload import WorkloadOptions


def simulate(
    ctx: typer.Context,
    model: option.ModelReference = None,
    profile: option.Profile = None,
    arm: option.Arm = "candidate",
    vllm_version: option.Version = None,
    npu: option.Npu = None,
    page: option.Page = None,
    kv_cache_memory: option.CacheMemory = None,
    device_memory: option.DeviceMemory = None,
    weight_bytes: option.WeightBytes = None,
    tier: option.Tier = None,
    requests: option.Requests = None,
    output_tokens: option.OutputTokens = "128",
    request: option.OneRequest = None,
    arrivals: option.Arrivals = None,
    arrival: option.Arrival = "closed",
    concurrency: option.Concurrency = 1,
    shared_prefix: option.SharedPrefix = None,
    seed: option.Seed = 1,
    step_ms: option.StepMs = None,
    token_ms: option.TokenMs = None,
    accepted: option.Accepted = None,
    kernel_ratio: option.KernelRatio = None,
    attention_share: option.AttentionShare = None,
    sweep: option.SweepAxes = None,
    below: option.Below = 0.5,
    trace: option.ShowTrace = False,
    timeline: option.TimelineFile = None,
    plot: option.Plot = None,
    form: option.OutputFormat = Format.TABLE,
    batch: option.Batch = None,
    oracle: option.Oracle = False,
    oracle_python: option.OraclePython = None,
    against: option.Against = None,
) -> None:
    """Play vLLM's scheduler step by step, and predict which steps hit which kernel.

    Everything after MODEL that is not an option of this command is read as vLLM's. With --batch
    each scenario is printed with its steps instead; with --against a real run of ab-bench is
    predicted and compared with what its servers counted.

    Exit status: 0 done (and the counters are as predicted), 1 they differ, or requests are never
    served (in a sweep: at no setting are all served), 2 usage, 3 bad input, 4 the server cannot be,
    5 no vLLM for --oracle. In a batch an error or a stuck run is an answer like others: 0.
    """
    from hwtune.cli import simulate_effects as effects
    from hwtune.cli.simulate_predict import PredictOptions, answer
    from hwtune.cli.simulate_workload import WorkloadOptions

    oracle = oracle or oracle_python is not None
    if batch is not None:
        effects.check_batch(ctx)
        _print_batch(batch, vllm_version, oracle, oracle_python)
        return
    if oracle:
        message = "--oracle needs --batch: it plays scenarios, without a model"
        raise UsageError(message)
    workload = WorkloadOptions(
        tiers=tuple(tier or ()),
        requests=requests,
        output_tokens=output_tokens,
        given=tuple(request or ()),
        arrivals=arrivals,
        arrival=arrival,
        concurrency=concurrency,
        shared_prefix=shared_prefix,
        seed=seed,
        step_ms=step_ms,
        token_ms=token_ms,
    )
    if against is not None:
        effects.check_against(ctx, requests_recorded=(against / DESIGN_FILE).is_file())
        effects.check_workload(ctx, workload)
        _print_comparison(against, workload, form)
        return
    effects.check_effects(ctx, workload, tuple(sweep or ()))
    options = PredictOptions(
        words=(*([] if model is None else [model]), *ctx.args),
        profile=profile,
        arm=arm,
        version=vllm_version,
        npu=npu,
        page=page,
        kv_cache_memory=kv_cache_memory,
        device_memory=device_memory,
        weight_bytes=weight_bytes,
        accepted=accepted,
        kernel_ratios=tuple(kernel_ratio or ()),
        attention_share=attention_share,
        sweep=tuple(sweep or ()),
        below=below,
        trace=trace,
        timeline=timeline,
        plot=plot,
        format=form,
    )
    text, served = answer(options, workload)
    typer.echo(text)
    if not served:
        raise typer.Exit(ANSWER_IS_NO)


def _print_comparison(run_dir: Path, workload: WorkloadOptions, form: Format) -> None:
    from hwtune.cli.simulate_against import compare_run
    from hwtune.report.against import show_comparisons

    comparisons = compare_run(run_dir, workload)
    typer.echo(show_comparisons(comparisons, form))
    if any(comparison.agreement == "differs" for comparison in comparisons):
        raise typer.Exit(ANSWER_IS_NO)


def _print_batch(reference: str, version: str | None, oracle: bool, python: str | None) -> None:
    from hwtune.cli.simulate_batch import batch_records

    for record in batch_records(reference, version, oracle=oracle, python=python):
        typer.echo(json.dumps(record, allow_nan=False, separators=(",", ":")))
