"""Options of ``hwtune simulate`` that would have no effect beside the others that were given."""

from __future__ import annotations

import typer

from hwtune.cli.given import refuse_given, refuse_others
from hwtune.cli.simulate_workload import WorkloadOptions

_BATCH = ("batch", "vllm_version", "oracle", "oracle_python")
_AGAINST = ("against", "form", "step_ms", "token_ms")
_SENT = (
    *("tier", "requests", "output_tokens", "request", "arrivals", "arrival"),
    *("concurrency", "shared_prefix", "seed"),
)
_CLOCK = "without requests by the clock (--arrivals, or --arrival poisson:PER_SECOND)"


def check_batch(context: typer.Context) -> None:
    """Raises UsageError for what a scenario says itself."""
    refuse_others(
        context,
        _BATCH,
        "--batch plays scenarios, which name server and requests themselves; beside it stand only"
        " --vllm-version, --oracle and --oracle-python",
    )


def check_against(context: typer.Context, *, requests_recorded: bool) -> None:
    """Raises UsageError for what the run says itself."""
    if requests_recorded:
        why = "--against a run of ab-bench knows its server and requests"
        refuse_others(context, _AGAINST, why)
    else:
        refuse_others(
            context, (*_AGAINST, *_SENT), "--against a server of hwtune serve knows the server"
        )


def check_effects(
    context: typer.Context, workload: WorkloadOptions, sweep: tuple[str, ...]
) -> None:
    """Raises UsageError for an option about something that is not simulated."""
    check_workload(context, workload)
    axes = {text.partition("=")[0].strip() for words in sweep for text in words.split()}
    if axes != {"concurrency"}:
        refuse_given(context, ("below",), "without --sweep concurrency=N,N,… alone")
    elif workload.concurrency != 1:
        refuse_given(context, ("concurrency",), "beside --sweep concurrency")


def check_workload(context: typer.Context, workload: WorkloadOptions) -> None:
    """Raises UsageError for an option that the source of requests has no use for."""
    source = "--request" if workload.given else "--arrivals"
    if workload.given:
        refuse_given(context, ("requests",), "beside --request, which is one request each time")
    if workload.given or workload.arrivals is not None:
        names = ("output_tokens", "seed")
        refuse_given(context, names, f"beside {source}, which says itself how long answers are")
    if workload.arrival != "closed":
        why = f"beside --arrival {workload.arrival[:40]}: it limits no requests in flight"
        refuse_given(context, ("concurrency",), why)
    if workload.arrivals is None and not workload.arrival.startswith("poisson"):
        refuse_given(context, ("step_ms", "token_ms"), _CLOCK)
