"""``hwtune verify-markers``: prove what a server really runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from hwtune.domain.evidence import Evidence
    from hwtune.domain.expectations import Expected
    from hwtune.domain.markers import MarkerReport

ReportFormat = Literal["table", "json", "markdown", "junit"]


Logs = Annotated[
    list[str] | None,
    typer.Argument(help="vLLM log files, .gz too; - is standard input.", show_default=False),
]
RunDir = Annotated[
    Path | None, typer.Option(help="Directory of a run of hwtune serve.", show_default=False)
]
Url = Annotated[
    str | None, typer.Option(help="Ask a running server too, e.g. http://127.0.0.1:8000.")
]
Expect = Annotated[
    list[str] | None,
    typer.Option(
        help="What must be true, e.g. block_size=832, hits=vendor_prefill,page_decode, "
        "prefix_caching=off, backend=CPU_ATTN; any fact by name. Repeatable.",
        show_default=False,
    ),
]
Nonce = Annotated[
    str | None,
    typer.Option(help="Nonce of the plan, when only a log is at hand; hits need it then."),
]
RequireHits = Annotated[
    bool | None,
    typer.Option(
        "--require-hits/--no-require-hits",
        help="Whether a planned kernel that was not called fails [as soon as requests were "
        "served or hits are expected].",
    ),
]
Compare = Annotated[
    tuple[Path, Path] | None,
    typer.Option(
        help="Two servers (run directories or logs): what differs, and is an A/B fair?",
        show_default=False,
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        help="With --compare: a fact that is meant to differ besides those that another page "
        "changes. Repeatable.",
        show_default=False,
    ),
]
Start = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Which start to judge where a log holds several, from 1 [the plan's, else the last].",
        show_default=False,
    ),
]
Format = Annotated[ReportFormat, typer.Option("--format", help="How to report.")]


def verify_markers(
    logs: Logs = None,
    run_dir: RunDir = None,
    url: Url = None,
    expect: Expect = None,
    nonce: Nonce = None,
    require_hits: RequireHits = None,
    compare: Compare = None,
    allow: Allow = None,
    start: Start = None,
    form: Format = "table",
) -> None:
    """Read a server's log, run directory or endpoints and check what really ran.

    Answers: is the layout change in, what is the block size at run time, did each kernel hit,
    did prefix caching change the page. Every fact comes with file, line and process.

    Exit status: 0 all checks passed, 1 one failed, 2 usage, 3 unreadable input,
    6 the server does not answer.
    """
    from hwtune.domain.errors import UsageError
    from hwtune.domain.markers import check
    from hwtune.io.marker_sets import load_diagnoses

    if compare is not None:
        raise typer.Exit(_compare(compare, allow, form))
    if not logs and run_dir is None and url is None:
        message = "name a log file, - for standard input, --run-dir, --url or --compare"
        raise UsageError(message)
    evidence = _collect(logs or [], run_dir, url, nonce, start)
    expected = _expected(expect or [], evidence)
    report = check(
        evidence,
        expected.expect,
        require_kernel_hits=_hits_required(evidence, expected.hits_named, require_hits),
        facts=expected.facts,
        diagnoses=load_diagnoses(),
    )
    typer.echo(_render(report, evidence, form))
    if not report.passed:
        raise typer.Exit(1)


def _collect(
    logs: list[str], run_dir: Path | None, url: str | None, nonce: str | None, start: int | None
) -> Evidence:
    from hwtune.io.run_evidence import collect

    if url is None:
        return collect(run_dir, log_paths=logs, nonce=nonce, start=start)
    from hwtune.adapters.metrics import scrape

    live = scrape(url)
    return collect(
        run_dir,
        log_paths=logs,
        nonce=nonce,
        start=start,
        metrics_text=live.metrics_text,
        metrics_source=f"{live.url}/metrics",
        sightings=live.sightings,
    )


def _expected(items: list[str], evidence: Evidence) -> Expected:
    from hwtune.domain.expectations import parse_expectations
    from hwtune.io.marker_sets import load_markers

    base = None if evidence.plan is None else evidence.plan.expect
    return parse_expectations(items, base=base, facts=load_markers().facts)


def _hits_required(evidence: Evidence, hits_named: bool, asked: bool | None) -> bool:
    if asked is not None:
        return asked
    served = evidence.value("requests_served")
    return hits_named or (isinstance(served, (int, float)) and served > 0)


def _render(report: MarkerReport, evidence: Evidence, form: ReportFormat) -> str:
    from hwtune.report.junit import report_to_junit
    from hwtune.report.markers import report_to_json, report_to_markdown, report_to_text

    if form == "junit":
        return report_to_junit(report)
    show = {"table": report_to_text, "json": report_to_json, "markdown": report_to_markdown}[form]
    return show(report, evidence)


def _compare(sides: tuple[Path, Path], allow: list[str] | None, form: ReportFormat) -> int:
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
