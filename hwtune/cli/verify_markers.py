"""``hwtune verify-markers``: prove what a server really runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hwtune.cli import verify_markers_options as option
from hwtune.cli.given import refuse_given, refuse_others

if TYPE_CHECKING:
    from hwtune.domain.evidence import Evidence
    from hwtune.domain.following import Until
    from hwtune.domain.markers import MarkerReport
    from hwtune.domain.page_steps import PageDerivation


def verify_markers(
    context: typer.Context,
    logs: option.Logs = None,
    run_dir: option.RunDir = None,
    url: option.Url = None,
    model: option.Model = None,
    profile: option.Profile = None,
    expect: option.Expect = None,
    nonce: option.Nonce = None,
    require_hits: option.RequireHits = None,
    compare: option.Compare = None,
    allow: option.Allow = None,
    start: option.Start = None,
    follow: option.Follow = False,
    until: option.UntilOption = "startup",
    timeout: option.Timeout = None,
    form: option.Format = "table",
) -> None:
    """Read a server's log, run directory or endpoints and check what really ran.

    Answers: is the layout change in, what is the block size at run time, did each kernel hit,
    did prefix caching change the page. Every fact comes with file, line and process.

    Exit status: 0 all checks passed, 1 one failed, 2 usage, 3 unreadable input,
    6 the server does not answer.
    """
    asked = _Asked(
        logs=logs or [],
        run_dir=run_dir,
        url=url,
        model=model,
        profile=profile,
        expect=expect or [],
        nonce=nonce,
        require_hits=require_hits,
        start=start,
    )
    if compare is not None:
        why = "--compare takes two servers and only --allow beside it"
        refuse_others(context, ("compare", "allow", "form"), why)
        raise typer.Exit(_compare(compare, allow, form))
    refuse_given(context, ("allow",), "without --compare")
    if not follow:
        refuse_given(context, ("until", "timeout"), "without --follow")
    _refuse(asked, follow=follow)
    evidence = _followed(asked, until, timeout) if follow else _collect(asked)
    report = _judge(asked, evidence)
    typer.echo(_render(report, evidence, form))
    if not report.passed:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The command line's questions about one server."""

    logs: list[str]
    run_dir: Path | None
    url: str | None
    model: str | None
    profile: str | None
    expect: list[str]
    nonce: str | None
    require_hits: bool | None
    start: int | None


def _refuse(asked: _Asked, *, follow: bool) -> None:
    """Options that cannot mean what they say.

    Raises:
        UsageError: names them.
    """
    from hwtune.domain.errors import UsageError

    if not asked.logs and asked.run_dir is None and asked.url is None:
        message = "name a log file, - for standard input, --run-dir, --url or --compare"
        raise UsageError(message)
    if follow and (asked.url is not None or asked.start is not None):
        message = "--follow reads logs as they grow; ask --url or --start afterwards"
        raise UsageError(message)
    if asked.nonce is not None and not asked.nonce.strip():
        message = "--nonce is empty: give the plan's, or leave it out"
        raise UsageError(message)
    if (asked.model is None) is not (asked.profile is None) and asked.run_dir is None:
        message = "--model and --profile go together: the page depends on both"
        raise UsageError(message)


def _collect(asked: _Asked) -> Evidence:
    from hwtune.io.run_evidence import collect

    if asked.url is None:
        return collect(asked.run_dir, log_paths=asked.logs, nonce=asked.nonce, start=asked.start)
    from hwtune.adapters.metrics import scrape

    live = scrape(asked.url)
    return collect(
        asked.run_dir,
        log_paths=asked.logs,
        nonce=asked.nonce,
        start=asked.start,
        metrics_text=live.metrics_text,
        metrics_source=f"{live.url}/metrics",
        sightings=live.sightings,
    )


def _followed(asked: _Asked, until: Until, timeout: float | None) -> Evidence:
    from hwtune.adapters.following import follow, wait_for
    from hwtune.domain.following import quiet_needed_s
    from hwtune.io.run_dir import LOG_FILE
    from hwtune.io.run_evidence import evidence_of, has_begun, new_collector
    from hwtune.report.markers import FactFeed

    run_dir = asked.run_dir
    if run_dir is not None and not has_begun(run_dir):
        typer.echo(f"hwtune: waiting for a run in {run_dir}", err=True)
        timeout = wait_for(lambda: has_begun(run_dir), timeout)
    collector = new_collector(run_dir, nonce=asked.nonce)
    feed = FactFeed()
    names = asked.logs or [str(run_dir / LOG_FILE)] if run_dir else asked.logs

    def quiet_needed() -> float | None:
        evidence = evidence_of(collector, run_dir)
        for line in feed.new_lines(evidence):
            typer.echo(line, err=True)
        return quiet_needed_s(until, evidence, _judge(asked, evidence))

    why = follow(names, collector, quiet_needed, timeout_s=timeout)
    quiet_needed()
    return evidence_of(collector, run_dir, notes=[f"followed until: {why}"])


def _judge(asked: _Asked, evidence: Evidence) -> MarkerReport:
    from hwtune.domain.expectations import parse_expectations
    from hwtune.domain.markers import check
    from hwtune.domain.server_flags import expectation_of
    from hwtune.io.marker_sets import load_diagnoses, load_markers

    base = None if evidence.plan is None else evidence.plan.expect
    page = _derived(asked, evidence)
    if page is not None and page.hybrid and evidence.plan is None:
        base = expectation_of(page)
    expected = parse_expectations(asked.expect, base=base, facts=load_markers().facts)
    return check(
        evidence,
        expected.expect,
        require_kernel_hits=_hits_required(evidence, expected.hits_named, asked.require_hits),
        facts=expected.facts,
        diagnoses=load_diagnoses(),
        page=page,
    )


def _derived(asked: _Asked, evidence: Evidence) -> PageDerivation | None:
    """What derive-page says of this server, when a model is named or planned."""
    plan = evidence.plan
    if asked.model is None and plan is None:
        return None
    from hwtune.adapters.hub import resolve_model
    from hwtune.domain.errors import HwtuneError
    from hwtune.domain.page_options import page_options
    from hwtune.domain.server_flags import aligned_by_plugin, observed_deployment
    from hwtune.io.model_config import load_model
    from hwtune.io.profiles import load_profile

    try:
        shape = load_model(str(resolve_model(asked.model or (plan.model if plan else ""))))
        hardware = load_profile(asked.profile or (plan.profile if plan else ""))
        options = page_options(shape, observed_deployment(evidence), hardware)
    except HwtuneError:
        if asked.model is not None:
            raise
        return None  # the plan's model or profile is not on this machine
    aligned = aligned_by_plugin(evidence)
    return options.required.page if aligned else options.default.page


def _hits_required(evidence: Evidence, hits_named: bool, asked: bool | None) -> bool:
    if asked is not None:
        return asked
    served = evidence.value("requests_served")
    return hits_named or (isinstance(served, (int, float)) and served > 0)


def _render(report: MarkerReport, evidence: Evidence, form: option.ReportFormat) -> str:
    from hwtune.report.junit import report_to_junit
    from hwtune.report.markers import report_to_json, report_to_markdown, report_to_text

    if form == "junit":
        return report_to_junit(report)
    show = {"table": report_to_text, "json": report_to_json, "markdown": report_to_markdown}[form]
    return show(report, evidence)


def _compare(sides: tuple[Path, Path], allow: list[str] | None, form: option.ReportFormat) -> int:
    from hwtune.domain.errors import ANSWER_IS_NO, UsageError
    from hwtune.domain.server_compare import PAGE_FACTS, compare_servers
    from hwtune.io.run_evidence import collect
    from hwtune.report.server_compare import (
        comparison_to_json,
        comparison_to_markdown,
        comparison_to_text,
    )

    if form == "junit":
        message = "--compare reports as table, json or markdown"
        raise UsageError(message)
    show = {
        "table": comparison_to_text,
        "json": comparison_to_json,
        "markdown": comparison_to_markdown,
    }[form]
    a, b = (collect(s) if s.is_dir() else collect(None, log_paths=[s]) for s in sides)
    comparison = compare_servers(a, b, declared=(*PAGE_FACTS, *(allow or ())))
    typer.echo(show(comparison))
    return 0 if comparison.fair else ANSWER_IS_NO
