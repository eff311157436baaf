"""Options of ``hwtune simulate`` -> what is sent to the simulated server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hwtune.domain.errors import UsageError
from hwtune.domain.scheduler.workloads import (
    Duration,
    WorkItem,
    Workload,
    parse_output_lengths,
    parse_request,
    poisson,
    share_prefix,
    tier_items,
)
from hwtune.domain.workload import DEFAULT_TIERS, parse_tier

_PER_TIER = 24
_MOST_REQUESTS = 1_000_000
_LONGEST_MS = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """As typed."""

    tiers: tuple[str, ...]
    requests: int | None
    output_tokens: str
    given: tuple[str, ...]
    """Requests, one by one."""
    arrivals: Path | None
    arrival: str
    concurrency: int
    shared_prefix: str | None
    seed: int
    step_ms: float | None
    token_ms: float | None


def workload_of(options: WorkloadOptions) -> Workload:
    """The requests and how they are paced.

    Raises:
        UsageError: options that contradict one another.
        InputError: the trace cannot be read.
    """
    _check(options)
    if options.given:
        items = tuple(parse_request(text, at) for at, text in enumerate(options.given))
        return Workload(items=items, pacing="stepped", title=f"{len(items)} requests as given")
    if options.arrivals is not None:
        return _traced(options.arrivals, options.requests)
    return _tiered(options)


def duration_of(options: WorkloadOptions) -> Duration | None:
    """How long a step lasts, if the user says it.

    Raises:
        UsageError: only one of the two numbers, or one that is no duration.
    """
    if options.step_ms is None and options.token_ms is None:
        return None
    step, token = options.step_ms or 0.0, options.token_ms or 0.0
    if not (0 <= step <= _LONGEST_MS and 0 <= token <= _LONGEST_MS and step + token > 0):
        message = f"--step-ms and --token-ms must be from 0 to {_LONGEST_MS:g}, and not both 0"
        raise UsageError(message)
    return Duration(step_ms=step, token_ms=token)


def _check(options: WorkloadOptions) -> None:
    sources = {
        "--request": options.given,
        "--arrivals": options.arrivals,
        "--tier": options.tiers,
    }
    named = [flag for flag, value in sources.items() if value]
    if len(named) > 1:
        message = f"{' and '.join(named)} do not go together: one source of requests at a time"
        raise UsageError(message)
    if options.concurrency < 1 or (options.requests is not None and options.requests < 1):
        message = "--concurrency and --requests must be 1 or more"
        raise UsageError(message)
    if options.requests is not None and options.requests > _MOST_REQUESTS:
        message = f"--requests {options.requests}: at most {_MOST_REQUESTS}"
        raise UsageError(message)
    paced = options.arrival != "closed" or options.concurrency != 1
    if paced and named and named != ["--tier"]:
        message = f"--arrival and --concurrency need --tier: {named[0]} says itself when to send"
        raise UsageError(message)
    if options.shared_prefix is not None and named and named != ["--tier"]:
        message = f"--shared-prefix needs --tier: {named[0]} says itself what is shared"
        raise UsageError(message)


def _traced(path: Path, limit: int | None) -> Workload:
    from hwtune.io.arrivals import read_trace

    trace = read_trace(path, limit)
    notes = []
    if trace.skipped:
        notes.append(f"{path}: {trace.skipped} lines without a prompt or an answer are left out")
    return Workload(
        items=trace.items,
        pacing="timed",
        title=f"{len(trace.items)} requests of {path.name} ({trace.form})",
        notes=tuple(notes),
    )


def _tiered(options: WorkloadOptions) -> Workload:
    tiers = tuple(parse_tier(text) for text in options.tiers or DEFAULT_TIERS)
    outputs = parse_output_lengths(options.output_tokens)
    count = options.requests or _PER_TIER
    items = tier_items(tiers, count, outputs, options.seed)
    title = (
        f"{len(items)} requests of {', '.join(tier.name for tier in tiers)} context,"
        f" {outputs.text} output tokens, seed {options.seed}"
    )
    if options.shared_prefix is not None:
        tokens, groups = _prefix(options.shared_prefix)
        items = share_prefix(items, tokens, groups, options.seed)
        title += f", {tokens} tokens shared in {groups} group{'s' * (groups != 1)}"
    return _paced(options, items, title)


def _paced(options: WorkloadOptions, items: tuple[WorkItem, ...], title: str) -> Workload:
    kind, _, rate = options.arrival.partition(":")
    if kind == "closed" and not rate:
        return Workload(
            items=items,
            pacing="closed loop",
            concurrency=options.concurrency,
            first_alone=True,
            title=title,
        )
    if kind == "burst" and not rate:
        stepped = tuple(replace(item, arrival_step=0) for item in items)
        return Workload(items=stepped, pacing="stepped", title=f"{title}, all at once")
    if kind == "poisson":
        per_second = _rate(options.arrival, rate)
        timed = poisson(items, per_second, options.seed)
        return Workload(items=timed, pacing="timed", title=f"{title}, Poisson {per_second:g} per s")
    message = f"--arrival {options.arrival[:40]}: expected closed, burst or poisson:PER_SECOND"
    raise UsageError(message)


def _rate(whole: str, text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e6:
        message = f"--arrival {whole[:40]}: expected requests per second above 0"
        raise UsageError(message)
    return rate


def _prefix(text: str) -> tuple[int, int]:
    tokens, _, groups = text.partition("/")
    try:
        numbers = int(tokens), int(groups or 1)
    except ValueError:
        numbers = 0, 0
    if min(numbers) < 1:
        message = f"--shared-prefix {text[:40]}: expected TOKENS or TOKENS/GROUPS"
        raise UsageError(message)
    return numbers
