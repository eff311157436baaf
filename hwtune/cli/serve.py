"""``hwtune serve``: start vLLM so that it gets the planned page, and prove that it did."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from hwtune.cli.given import finite, refuse_given
from hwtune.cli.streams import HarmlessStream
from hwtune.domain.plain_text import one_line

RUNS_DIRECTORY = Path("hwtune-runs")

ArmChoice = Literal["baseline", "candidate"]
PlanFormat = Literal["text", "json"]


def serve(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Model directory or Hugging Face id.")],
    profile: Annotated[str, typer.Option(help="Hardware profile: a name or a TOML file.")],
    arm: Annotated[
        ArmChoice, typer.Option(help="baseline changes nothing and only observes.")
    ] = "candidate",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    form: Annotated[PlanFormat, typer.Option("--format", help="How to print the plan.")] = "text",
    run_dir: Annotated[
        Path | None, typer.Option(help="New directory for this run [hwtune-runs/<time>-…].")
    ] = None,
    ready_timeout: Annotated[
        float, typer.Option(min=1, callback=finite, help="Seconds start-up may take.")
    ] = 1800.0,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Serve even if it is not what was planned.")
    ] = False,
    stop_when_verified: Annotated[
        bool, typer.Option("--stop-when-verified", help="Start, verify, stop: for CI.")
    ] = False,
    no_probe: Annotated[
        bool, typer.Option("--no-probe", help="Send no request of our own after start.")
    ] = False,
    checked: Annotated[
        bool,
        typer.Option(
            "--checked", help="Compute each hit by vLLM's own path too, and compare. Slow."
        ),
    ] = False,
    check_rate: Annotated[
        float | None,
        typer.Option(
            show_default=False, help="Share of the hits to compare, from 0 to 1; implies --checked."
        ),
    ] = None,
    count_attn_state: Annotated[
        bool,
        typer.Option(
            "--count-attn-state",
            help="vllm-ascend: count the attention state of each step and the calls made.",
        ),
    ] = False,
    watchdog: Annotated[
        float,
        typer.Option(
            min=0,
            callback=finite,
            help="Seconds a server may do nothing although asked; 0 does not watch.",
        ),
    ] = 300.0,
    stop_when_stuck: Annotated[
        bool, typer.Option("--stop-when-stuck", help="Stop a server that the watchdog finds stuck.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Do not show vLLM's log (the run directory has it).")
    ] = False,
) -> None:
    """Start vLLM with the profile's page and kernels, and prove what really runs.

    Everything after MODEL that is not an option of this command goes to vLLM untouched.

    Exit status: 0 the server was what was planned, 1 it was not, 2 usage, 3 bad input,
    4 infeasible, 5 vLLM is missing, 6 vLLM failed.
    """
    from hwtune.adapters.vllm.planning import plan_server
    from hwtune.adapters.vllm.session import SessionOptions, run_session
    from hwtune.io.plans import plan_to_json
    from hwtune.report.plan import plan_to_text

    _refuse(context)
    rate = check_rate if check_rate is not None else float(checked)
    plan = plan_server(
        model,
        profile,
        arm,
        context.args,
        checked_rate=rate,
        count_attn_state=count_attn_state,
    )
    if dry_run or form == "text":
        typer.echo(plan_to_json(plan) if form == "json" else plan_to_text(plan))
    if dry_run:
        return
    directory = run_dir or RUNS_DIRECTORY / plan.run_id
    _say(f"run directory: {directory}")
    options = SessionOptions(
        ready_timeout_s=ready_timeout,
        keep_going=keep_going,
        stop_when_verified=stop_when_verified,
        send_probe=not no_probe,
        patience_s=watchdog,
        stop_when_stuck=stop_when_stuck,
    )
    status = run_session(plan, directory, options, echo=None if quiet else _show, say=_say)
    raise typer.Exit(status)


def _refuse(context: typer.Context) -> None:
    """Raises UsageError for options that would have no effect or contradict one another."""
    given = context.params
    if not given["dry_run"] and given["form"] == "json":
        refuse_given(context, ("form",), "without --dry-run: the run directory has plan.json")
    if given["watchdog"] == 0:
        refuse_given(context, ("stop_when_stuck",), "with --watchdog 0, which does not watch")
    if given["stop_when_verified"]:
        refuse_given(context, ("stop_when_stuck", "watchdog"), "with --stop-when-verified")
    if given["check_rate"] == 0 and given["checked"]:
        refuse_given(context, ("checked",), "with --check-rate 0, which compares nothing")


def _show(line: str) -> None:
    """vLLM's log is passed through as it is, with the colours it gives itself."""
    write = sys.stdout.write_as_is if isinstance(sys.stdout, HarmlessStream) else sys.stdout.write
    try:
        write(line + "\n")
        sys.stdout.flush()
    except OSError:
        # Nobody reads on, or the disk is full. Python would complain at exit when it flushes the
        # rest, and end with a status of its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk, or nobody reads on
        sys.stderr.write(f"hwtune: {one_line(text)}\n")
        sys.stderr.flush()
