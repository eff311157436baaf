"""``hwtune ab-bench accuracy``: does the candidate still compute the same model?"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated

import typer

from hwtune.cli import ab_bench_options as options
from hwtune.cli.ab_bench_output import say
from hwtune.domain.bench import ARMS
from hwtune.domain.errors import ANSWER_IS_NO, InputError, UsageError
from hwtune.report.tables import Format

RESULT_FILE = "accuracy.json"
_LEAST = {"prompts": 1, "context": 16, "output_tokens": 2, "top": 2, "items": 1, "repeats": 0}


def accuracy(
    context: typer.Context,
    model: Annotated[str | None, typer.Argument(help="Model directory or name.")] = None,
    profile: Annotated[str | None, typer.Option(help="Hardware profile of the candidate.")] = None,
    prompts: Annotated[int, typer.Option(help="Fixed prompts to compare.")] = 6,
    context_tokens: Annotated[
        int, typer.Option("--context", help="Tokens of each, about, and around the needle.")
    ] = 1024,
    output_tokens: Annotated[int, typer.Option(help="Tokens generated after each.")] = 64,
    top: Annotated[int, typer.Option(help="Log-probabilities per position.")] = 20,
    items: Annotated[int, typer.Option(help="Items per task.")] = 16,
    repeats: Annotated[int, typer.Option(help="Prompts that are asked twice.")] = 2,
    max_kl: Annotated[float, typer.Option(help="Largest mean KL, in nats.")] = 0.01,
    max_flips: Annotated[float, typer.Option(help="Largest share of decided flips.")] = 0.01,
    seed: Annotated[int, typer.Option(help="Decides prompts and items.")] = 1,
    baseline_url: Annotated[str | None, typer.Option(help="A server that is up.")] = None,
    candidate_url: Annotated[str | None, typer.Option(help="A server that is up.")] = None,
    baseline_run: Annotated[Path | None, typer.Option(help="Its run directory.")] = None,
    candidate_run: Annotated[Path | None, typer.Option(help="Its run directory.")] = None,
    request_timeout: Annotated[float, typer.Option(help="Seconds per request.")] = 600.0,
    ready_timeout: Annotated[float, typer.Option(help="Seconds for a server to start.")] = 1800.0,
    run_dir: Annotated[Path | None, typer.Option(help="Where servers and result go.")] = None,
    form: Annotated[Format, typer.Option("--format", help="Result on standard output.")] = (
        Format.TABLE
    ),
) -> None:
    """Ask both arms the same: log-probabilities, repeatability, four small tasks.

    Everything after MODEL that is not an option of this command goes to vLLM, for both arms.

    Exit status: 0 the arms agree, 1 they differ or cannot be compared, 3 bad input, 6 a server
    failed.
    """
    from hwtune.adapters.load.accuracy import Questions, compare_accuracy, own_arms, url_arms
    from hwtune.adapters.load.session import new_run_dir
    from hwtune.domain.accuracy import Limits, lm_eval_command
    from hwtune.io.records import write_text
    from hwtune.report.accuracy import to_text

    given = (prompts, context_tokens, output_tokens, top, items, repeats)
    _check_counts(dict(zip(_LEAST, given, strict=True)))
    _check_limits(max_kl, max_flips)
    options.check_seconds(request_timeout=request_timeout, ready_timeout=ready_timeout)
    urls = {"baseline": baseline_url, "candidate": candidate_url}
    known = {arm: url for arm, url in urls.items() if url is not None}
    mode = options.mode_of(False, *([url] if url else [] for url in urls.values()))
    options.refuse_flags_with_urls(mode, context.args)
    options.refuse_without_effect(context, mode)
    if known and model is not None:
        message = f"{model}: the servers at the URLs say which model they serve; leave it out"
        raise UsageError(message)
    options.refuse_unproved_profile(mode, profile, (baseline_run, candidate_run))
    place = run_dir or new_run_dir("accuracy")
    _require_fresh(place)
    if known:
        runs = {"baseline": baseline_run, "candidate": candidate_run}
        arms, gates = url_arms(known, runs)
    else:
        wanted = options.required_model(model, mode, profile)
        arms, gates = own_arms(wanted, profile or "", context.args, place, ready_timeout)
    report = compare_accuracy(
        arms,
        gates,
        Questions(
            prompts=prompts,
            context_tokens=context_tokens,
            output_tokens=output_tokens,
            top=top,
            items=items,
            repeats=min(repeats, prompts),
            seed=seed,
            timeout_s=request_timeout,
        ),
        Limits(max_mean_kl=max_kl, max_flips=max_flips),
        say,
    )
    write_text(place / RESULT_FILE, to_text(report, Format.JSON))
    sys.stdout.write(to_text(report, form))
    say(f"result: {place / RESULT_FILE}")
    for arm in ARMS:
        say(f"for a whole benchmark, {arm}: {lm_eval_command(report.model, known.get(arm))}")
    if report.answer_is_no:
        raise typer.Exit(ANSWER_IS_NO)


def _check_counts(given: dict[str, int]) -> None:
    for name, count in given.items():
        if count < _LEAST[name]:
            option = "--" + name.replace("_", "-")
            message = f"{option} {count}: at least {_LEAST[name]}"
            raise UsageError(message)


def _check_limits(max_kl: float, max_flips: float) -> None:
    if not 0 < max_kl < math.inf or not 0 <= max_flips < 1:
        message = "--max-kl must be above 0, --max-flips between 0 and 1"
        raise UsageError(message)


def _require_fresh(place: Path) -> None:
    if (place / RESULT_FILE).exists() or (place / "arms").exists():
        message = f"{place} already holds a result; name another directory"
        raise InputError(message)
    try:  # now, not after minutes of answers
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"--run-dir {place}: cannot be made: {error.strerror}"
        raise InputError(message) from None
