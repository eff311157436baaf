"""Options of ``ab-bench``, refused with exit status 2 before anything is written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from urllib.parse import urlsplit

import typer

from hwtune.cli.given import given, refuse_given
from hwtune.domain.errors import InputError, UsageError
from hwtune.domain.workload import MINIMUM_PAIRS, Mode, Tier, parse_tier

_LONGEST_CONTEXT = 10_000_000
_WITH_RESUME = frozenset({"resume", "form", "ready_timeout", "fail_if", "junit", "parquet"})
"""Parameters that are no part of a design."""


def mode_of(restart: bool, baseline: Sequence[str], candidate: Sequence[str]) -> Mode:
    """How the servers come to be.

    Raises:
        UsageError: URLs for one arm alone, URLs with --restart, a bad URL, or one of them twice.
    """
    if bool(baseline) != bool(candidate):
        message = "--baseline-url and --candidate-url belong together: give both or none"
        raise UsageError(message)
    if not baseline:
        return "restart per block" if restart else "concurrent servers"
    if restart:
        message = "--restart needs servers that hwtune starts itself: leave the URLs out"
        raise UsageError(message)
    seen: dict[tuple[str, int, str], str] = {}
    for option, urls in (("--baseline-url", baseline), ("--candidate-url", candidate)):
        for url in urls:
            place = _place(option, url)
            if place in seen:
                message = (
                    f"{option} {url} and {seen[place]} are the same server:"
                    " use --aa for the baseline against itself"
                )
                raise UsageError(message)
            seen[place] = f"{option} {url}"
    return "given urls"


def _place(option: str, url: str) -> tuple[str, int, str]:
    """Host, port and path, so that two spellings of one server are equal."""
    problem = "expected http://HOST:PORT or https://HOST:PORT"
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else None)
    except ValueError as error:
        problem, parts, port = f"{problem} ({error})", urlsplit(""), None
    host = (parts.hostname or "").rstrip(".")
    plain = url.isascii() and url.isprintable() and " " not in url
    extra = parts.query or parts.fragment or "@" in parts.netloc
    if parts.scheme not in ("http", "https") or not host or not port or not plain or extra:
        message = f"{option} {url!r}: {problem}"
        raise UsageError(message)
    host = "127.0.0.1" if host == "localhost" else host
    return host, port, parts.path.rstrip("/").removesuffix("/v1")


def refuse_flags_with_urls(mode: Mode, flags: Sequence[str]) -> None:
    """vLLM flags go to servers that hwtune starts; with URLs they would be silently lost.

    Raises:
        UsageError: names the first.
    """
    if mode == "given urls" and flags:
        message = f"{flags[0]}: no option of ab-bench, and a server that is up takes no vLLM flags"
        raise UsageError(message)


def refuse_without_effect(context: typer.Context, mode: Mode) -> None:
    """Options about servers of the other kind, and rests where no two servers are up.

    Raises:
        UsageError: the first of them.
    """
    if mode == "given urls":
        refuse_given(context, ("ready_timeout", "port"), "with URLs: these servers are up")
        return
    names = ("baseline_run", "candidate_run", "insecure")
    refuse_given(context, names, "without --baseline-url and --candidate-url")
    if mode == "restart per block":
        refuse_given(context, ("settle",), "with --restart: one server is up at a time")


def refuse_unproved_profile(
    mode: Mode, profile: str | None, run_dirs: Sequence[object | None]
) -> None:
    """A profile claims what the candidate is; of given servers only run directories prove it.

    Raises:
        UsageError: a profile and URLs, and a run directory is missing.
    """
    if mode == "given urls" and profile is not None and None in run_dirs:
        message = (
            "--profile with URLs needs --baseline-run and --candidate-run to prove it;"
            " name them, or leave the profile out"
        )
        raise UsageError(message)


def check_seconds(
    settle: float | None = None,
    request_timeout: float | None = None,
    ready_timeout: float | None = None,
) -> None:
    """Finite times: a rest of 0 or more, timeouts above 0.

    Raises:
        UsageError: names the option.
    """
    if settle is not None and not (math.isfinite(settle) and settle >= 0):
        message = f"--settle {settle}: must be a finite number of seconds, 0 or more"
        raise UsageError(message)
    timeouts = {"--request-timeout": request_timeout, "--ready-timeout": ready_timeout}
    for option, value in timeouts.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            message = f"{option} {value}: must be a finite number of seconds above 0"
            raise UsageError(message)


def check_judgement(margin: float, confidence: float) -> None:
    """Raises UsageError for a margin or confidence outside its range, NaN included."""
    if not 0 < margin < 1 or not 0.5 <= confidence < 1:
        message = "--margin must lie between 0 and 1, --confidence between 0.5 and 1"
        raise UsageError(message)


def check_aa(blocks: int) -> int:
    """Too few A/A blocks have no interval, and a gate that cannot turn red proves nothing.

    Raises:
        UsageError: negative, or 1 to 5.
    """
    if blocks and blocks < MINIMUM_PAIRS:
        message = f"--aa {blocks}: at least {MINIMUM_PAIRS} or 0"
        raise UsageError(message)
    return blocks


def tiers_of(texts: Sequence[str]) -> tuple[Tier, ...]:
    """The tiers, of a length that can be drawn and sent.

    Raises:
        UsageError: not a tier, or longer than any context.
    """
    tiers = tuple(map(parse_tier, texts))
    for tier in tiers:
        if tier.most_tokens > _LONGEST_CONTEXT:
            message = f"--tier {tier.name}: at most {_LONGEST_CONTEXT} tokens"
            raise UsageError(message)
    return tiers


def required_model(model: str | None, mode: Mode, profile: str | None) -> str:
    """MODEL, or one line on what is missing."""
    if model is None:
        message = "MODEL is missing: name a model directory, or continue a run with --resume"
        raise UsageError(message)
    if mode != "given urls" and profile is None:
        message = "--profile is missing: `hwtune profiles list` shows the names"
        raise UsageError(message)
    return model


def vocabulary(model: str | None, given: int | None) -> int:
    """Size of the vocabulary that prompts are drawn from."""
    from hwtune.io.prompts import read_vocab_size

    size = given if given is not None else read_vocab_size(model or "")
    if size is None:
        message = f"{model}: no local config.json, so the vocabulary is unknown; give --vocab-size"
        raise InputError(message)
    if size < 4:
        message = f"--vocab-size {size}: too small to draw prompts from"
        raise InputError(message)
    return size


def refuse_with_resume(context: typer.Context) -> None:
    """A resumed run takes its design from its directory.

    Raises:
        UsageError: lists what was given besides --resume.
    """
    others = given(context, but=_WITH_RESUME) + context.args
    if others:
        listed = ", ".join(others)
        message = f"--resume takes all from the run directory: give it alone, without {listed}"
        raise UsageError(message)
