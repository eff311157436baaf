"""The options of ``ab-bench serving`` as a design, refused whole before anything is written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from hwtune.cli import ab_bench_options as options
from hwtune.cli.given import on_command_line
from hwtune.domain.bench_metrics import Goal
from hwtune.domain.errors import UsageError
from hwtune.domain.workload import (
    DEFAULT_TIERS,
    TRACE_TIER,
    Arrival,
    Arrived,
    Design,
    Tier,
    check_design,
)

_GOAL = re.compile(r"(?P<metric>ttft|tpot|e2el):(?P<ms>\d+(?:\.\d+)?)")
_FEWEST_NOISE_BLOCKS = 6
_MOST_REPEATS = 8
_TRACE_WARM_UP_TOKENS = 2
"""Least answer: TPOT needs two tokens."""


def design_of(context: typer.Context) -> Design:
    """From the parsed command line.

    Raises:
        UsageError: an option that cannot mean what it says.
        InputError: the model's config is needed and cannot be read.
    """
    given: Mapping[str, Any] = context.params
    urls = tuple(given["baseline_url"] or ()), tuple(given["candidate_url"] or ())
    mode = options.mode_of(given["restart"], *urls)
    goals, flags = goals_and_flags(given["goodput"] or (), context.args)
    options.refuse_flags_with_urls(mode, flags)
    options.refuse_without_effect(context, mode)
    runs = given["baseline_run"], given["candidate_run"]
    options.refuse_unproved_profile(mode, given["profile"], runs)
    aa_pairs = options.check_aa(given["aa"])
    if given["noise_floor"]:
        aa_pairs = max(aa_pairs, _FEWEST_NOISE_BLOCKS)
    trace = _trace(context)
    design = Design(
        model=options.required_model(given["model"], mode, given["profile"]),
        profile=given["profile"],
        flags=flags,
        mode=mode,
        baseline_urls=urls[0],
        candidate_urls=urls[1],
        baseline_run=None if runs[0] is None else str(runs[0].absolute()),
        candidate_run=None if runs[1] is None else str(runs[1].absolute()),
        endpoint=given["endpoint"],
        verify_tls=not given["insecure"],
        api_key_variable=given["api_key_env"],
        vocab_size=_vocabulary(given),
        tiers=_tiers(given, trace),
        pairs=given["blocks"],
        prompts_per_tier=len(trace) or given["prompts_per_tier"],
        output_tokens=_TRACE_WARM_UP_TOKENS if trace else given["output_tokens"],
        concurrency=given["concurrency"],
        arrival=_arrival(context),
        rate_per_s=given["rate"],
        trace=trace,
        goals=goals,
        aa_pairs=aa_pairs,
        repeats=min(_MOST_REPEATS, given["prompts_per_tier"]) if aa_pairs else 0,
        warm_up=given["warm_up"],
        settle_s=given["settle"],
        request_timeout_s=given["request_timeout"],
        seed=given["design_seed"],
        margin=given["margin"],
        confidence=given["confidence"],
        port=given["port"],
    )
    check_design(design)
    return design


def _vocabulary(given: Mapping[str, Any]) -> int:
    """Texts are drawn from words, so a chat needs no vocabulary."""
    if given["endpoint"] == "chat" and given["vocab_size"] is None:
        return 4
    return options.vocabulary(given["model"], given["vocab_size"])


def _trace(context: typer.Context) -> tuple[Arrived, ...]:
    """The requests to replay; with --prompts-per-tier the first so many.

    Raises:
        UsageError: options that the trace decides.
        InputError: no trace of a known form.
    """
    path = context.params["arrivals"]
    if path is None:
        return ()
    for name in ("tier", "output_tokens", "arrival", "concurrency"):
        if on_command_line(context, name):
            message = f"--arrivals and --{name.replace('_', '-')}: the trace decides that"
            raise UsageError(message)
    from hwtune.io.arrivals import read_trace

    limited = on_command_line(context, "prompts_per_tier")
    found = read_trace(path, context.params["prompts_per_tier"] if limited else None)
    return tuple(
        Arrived(
            due_s=item.arrival_ms / 1e3,
            prompt_tokens=item.prompt_tokens,
            output_tokens=max(_TRACE_WARM_UP_TOKENS, item.output_tokens),
            parts=item.prefix_names,
            part_tokens=item.prefix_name_tokens,
        )
        for item in found.items
    )


def _tiers(given: Mapping[str, Any], trace: Sequence[Arrived]) -> tuple[Tier, ...]:
    if not trace:
        return options.tiers_of(given["tier"] or DEFAULT_TIERS)
    least = min(arrived.prompt_tokens for arrived in trace)
    most = max(arrived.prompt_tokens + arrived.output_tokens for arrived in trace)
    return (Tier(name=TRACE_TIER, least_tokens=least, most_tokens=most),)


def _arrival(context: typer.Context) -> Arrival:
    rate, arrival = context.params["rate"], context.params["arrival"]
    if context.params["arrivals"] is not None:
        return "trace"
    if arrival is not None and rate is None:
        message = f"--arrival {arrival} needs --rate, in requests per second"
        raise UsageError(message)
    if rate is None:
        return "closed"
    if on_command_line(context, "concurrency"):
        message = "--rate and --concurrency: an open loop has no limit of requests in flight"
        raise UsageError(message)
    found: Arrival = arrival or "poisson"
    return found


def goals_and_flags(
    goodput: Sequence[str], arguments: Sequence[str]
) -> tuple[tuple[Goal, ...], tuple[str, ...]]:
    """Goals and vLLM flags. ``--goodput ttft:200 tpot:50`` may be one list, as vLLM's client has it.

    Raises:
        UsageError: not METRIC:MILLISECONDS, or a metric twice.
    """
    words = [word for text in goodput for word in text.replace(",", " ").split()]
    loose = [word for word in arguments if goodput and _GOAL.fullmatch(word)]
    goals = [_goal(word) for word in [*words, *loose]]
    names = [goal.metric for goal in goals]
    if len(set(names)) < len(names):
        message = f"--goodput names a metric twice: {' '.join([*words, *loose])}"
        raise UsageError(message)
    return tuple(goals), tuple(word for word in arguments if word not in loose)


def _goal(word: str) -> Goal:
    match = _GOAL.fullmatch(word)
    if match is None or float(match["ms"]) <= 0:
        message = f"--goodput {word}: expected ttft, tpot or e2el and milliseconds, as in ttft:200"
        raise UsageError(message)
    return Goal(metric=match["metric"], most_ms=float(match["ms"]))  # type: ignore[arg-type]
