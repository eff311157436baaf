"""``hwtune ab-bench``: baseline against candidate, measured so that one can bet on it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hwtune.cli import ab_bench_options as options
from hwtune.cli.ab_bench_accuracy import accuracy
from hwtune.cli.ab_bench_buckets import buckets
from hwtune.cli.ab_bench_kernels import kernels
from hwtune.cli.ab_bench_output import (
    Delivery,
    FailIfOption,
    FormatOption,
    JunitOption,
    ParquetOption,
    deliver,
    rules_of,
    say,
)
from hwtune.cli.ab_bench_report import page_of, report
from hwtune.cli.ab_bench_results import compare, export
from hwtune.domain.errors import ANSWER_IS_NO, HwtuneError, UsageError
from hwtune.domain.workload import Api

if TYPE_CHECKING:
    from hwtune.adapters.load.session import Session

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measure baseline against candidate: interleaved, paired, gated.",
)

_PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}

app.command("accuracy", context_settings=_PASS_THROUGH)(accuracy)
app.command("buckets")(buckets)
app.command("kernels")(kernels)
app.command("report")(report)
app.command("compare")(compare)
app.command("export")(export)

_INTERRUPTED = 130


@app.command("serving", context_settings=_PASS_THROUGH)
def serving(
    context: typer.Context,
    model: Annotated[str | None, typer.Argument(help="Model directory or name.")] = None,
    profile: Annotated[str | None, typer.Option(help="Hardware profile of the candidate.")] = None,
    tier: Annotated[
        list[str] | None, typer.Option(help="Context range in tokens, e.g. 4096-8192. Repeatable.")
    ] = None,
    prompts_per_tier: Annotated[int, typer.Option(help="Prompts per tier, in all.")] = 24,
    blocks: Annotated[int, typer.Option(help="Blocks per arm and tier; 6 at least decide.")] = 8,
    output_tokens: Annotated[int, typer.Option(help="Tokens per answer, fixed.")] = 128,
    concurrency: Annotated[int, typer.Option(help="Requests in flight (closed loop).")] = 1,
    rate: Annotated[
        float | None,
        typer.Option(help="Requests per second (open loop), however slow answers are."),
    ] = None,
    arrival: Annotated[
        Literal["poisson", "constant"] | None, typer.Option(help="Gaps of an open loop.")
    ] = None,
    arrivals: Annotated[
        Path | None,
        typer.Option(help="Trace to replay: Azure or BurstGPT CSV, Mooncake JSON lines."),
    ] = None,
    endpoint: Annotated[
        Api, typer.Option(help="chat: text of about the tier's length, not token ids.")
    ] = "completions",
    goodput: Annotated[
        list[str] | None,
        typer.Option(help="What a good request meets, in ms: ttft:200 tpot:50 e2el:9000."),
    ] = None,
    noise_floor: Annotated[
        bool, typer.Option("--noise-floor", help="The baseline against itself first: --aa 6.")
    ] = False,
    aa: Annotated[
        int, typer.Option("--aa", help="Blocks of baseline against itself, first; 6 at least.")
    ] = 0,
    warm_up: Annotated[int, typer.Option(help="Excluded requests per arm and tier.")] = 2,
    margin: Annotated[float, typer.Option(help="A change within this is 'the same'.")] = 0.02,
    confidence: Annotated[float, typer.Option(help="Of all tiers together, per metric.")] = 0.95,
    design_seed: Annotated[int, typer.Option(help="Decides prompts and order.")] = 1,
    settle: Annotated[
        float, typer.Option(help="Seconds of rest before every block, while both servers are up.")
    ] = 1.5,
    request_timeout: Annotated[float, typer.Option(help="Seconds per request.")] = 600.0,
    ready_timeout: Annotated[float, typer.Option(help="Seconds for a server to start.")] = 1800.0,
    restart: Annotated[
        bool, typer.Option("--restart", help="One server at a time, restarted for every block.")
    ] = False,
    port: Annotated[int | None, typer.Option(help="Baseline's port; candidate's is next.")] = None,
    baseline_url: Annotated[
        list[str] | None, typer.Option(help="A server that is up. Repeatable: asked in turn.")
    ] = None,
    candidate_url: Annotated[
        list[str] | None, typer.Option(help="A server that is up. Repeatable: asked in turn.")
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable with the API key of both arms.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Take any TLS certificate.")] = False,
    baseline_run: Annotated[Path | None, typer.Option(help="Its run directory.")] = None,
    candidate_run: Annotated[Path | None, typer.Option(help="Its run directory.")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="If the config is not here.")] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Where records and results go.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this directory.")] = None,
    fail_if: FailIfOption = None,
    junit: JunitOption = None,
    parquet: ParquetOption = None,
    form: FormatOption = "table",
) -> None:
    """Serve both arms, send both the same prompts in random ABBA blocks, and judge.

    Everything after MODEL that is not an option of this command goes to vLLM, for both arms.

    Exit status: 0 done and the candidate is not slower (or no rule of --fail-if met), 1 slower, not
    comparable or a rule met, 3 bad input, 6 a server failed.
    """
    from hwtune.adapters.load.session import Session, new_run_dir
    from hwtune.cli.ab_bench_design import design_of
    from hwtune.domain.bench_values import metrics_of
    from hwtune.domain.fail_if import check_rules
    from hwtune.io.records import read_design

    options.check_seconds(settle, request_timeout, ready_timeout)
    rules = rules_of(fail_if)
    if resume is not None:
        options.refuse_with_resume(context)
        design, directory = read_design(resume), resume
    else:
        design, directory = design_of(context), run_dir or new_run_dir()
    tiers = [tier.name for tier in design.tiers]
    check_rules(rules, tiers, [metric.name for metric in metrics_of(design)])
    session = Session(design, directory, resumed=resume is not None)
    _finish(session, ready_timeout, Delivery(form, rules, junit, parquet))


@app.command("self-test")
def self_test(
    streams: Annotated[
        list[int] | None, typer.Option(help="Concurrency to check. Repeatable.")
    ] = None,
    form: Annotated[
        Literal["table", "json"], typer.Option("--format", help="Result on standard output.")
    ] = "table",
) -> None:
    """Check whether this machine can measure: the client against a mock with known timing.

    The mock stands in for vLLM: first token after 200 ms, 20 ms per token, 64 tokens. Exit status
    0 when the client is within its limits at every concurrency, else 1.
    """
    from hwtune.adapters.load.self_test import FAULTS, STREAMS, check_faults, check_speed
    from hwtune.report.self_test import to_json, to_table

    asked = streams or list(STREAMS)
    if min(asked) < 1:
        message = f"--streams {min(asked)}: must be 1 or more"
        raise UsageError(message)
    wrong = check_faults()
    known = len(FAULTS) - len(wrong)
    say(f"faults: {known} of {len(FAULTS)} recognised{': ' * bool(wrong)}{'; '.join(wrong)}")
    checks = []
    for check in check_speed(asked):
        say(f"{check.streams} streams: {'ok' if check.passed else ', '.join(check.problems)}")
        checks.append(check)
    sys.stdout.write(to_table(checks) if form == "table" else to_json(checks, wrong))
    if wrong or not all(check.passed for check in checks):
        raise typer.Exit(ANSWER_IS_NO)


def _finish(session: Session, ready_timeout_s: float, delivery: Delivery) -> None:
    """Runs, shows, and exits with what the result means."""
    from hwtune.domain.fail_if import judged_by
    from hwtune.report.bench import to_markdown
    from hwtune.report.progress import watching

    error: HwtuneError | None = None
    interrupted = False
    try:
        with watching() as watcher:
            session.run(ready_timeout_s, watcher)
    except KeyboardInterrupt:
        interrupted = True
    except HwtuneError as caught:
        error = caught
    comparison = session.judge(judged=judged_by(delivery.rules)) if session.begun else None
    no = True
    if comparison is not None:
        try:
            session.write(comparison, to_markdown(comparison), page_of(session, comparison))
        except HwtuneError as caught:
            # A full disk must not keep the answer of hours from being shown.
            error = error or caught
        no = deliver(comparison, delivery)
    if session.begun:
        _say_what_is_missing(session)
    if error is not None:
        raise error
    if interrupted:
        raise typer.Exit(_INTERRUPTED)
    if no:
        raise typer.Exit(ANSWER_IS_NO)


def _say_what_is_missing(session: Session) -> None:
    missing = session.missing()
    if missing:
        say(f"missing: {missing}")
        say(f"continue with: hwtune ab-bench serving --resume {session.run_dir}")
    say(f"run directory: {session.run_dir}")
