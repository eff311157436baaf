"""``hwtune ab-bench report``: a run as one page, to look at and to print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hwtune.adapters.load.session import Session
    from hwtune.domain.bench import Comparison


def page_of(session: Session, comparison: Comparison) -> str:
    """The page of a run that was judged."""
    from hwtune.domain.bench_series import series
    from hwtune.io.records import read_requests
    from hwtune.report.bench_page import bench_page

    records = read_requests(session.run_dir)
    shown = series(comparison, session.design, records)
    return bench_page(comparison, shown, records, session.arms_side_by_side(records))


def report(
    run_dir: Annotated[Path, typer.Argument(help="A run directory of ab-bench serving.")],
    output: Annotated[
        Path | None, typer.Option(help="The page. Default: report.html in the run directory.")
    ] = None,
) -> None:
    """Write a run's page again: one HTML file that loads nothing, readable and printable.

    The run is judged again from what is on disk. Exit status 0 written, 3 bad input.
    """
    from hwtune.cli.ab_bench_results import judge_again
    from hwtune.io.records import PAGE_FILE, write_text

    session, comparison = judge_again(run_dir)
    place = output or run_dir / PAGE_FILE
    write_text(place, page_of(session, comparison))
    typer.echo(f"wrote {place}")
