"""Options of ``hwtune verify-markers``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from hwtune.cli.given import finite
from hwtune.domain.following import Until

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
Model = Annotated[
    str | None,
    typer.Option(
        help="Derive the page of this model (directory, config.json or id) for the flags that the "
        "server states, and compare page, padding and capacity [the plan's model].",
        show_default=False,
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(help="With --model: the accelerator's profile [the plan's].", show_default=False),
]
Follow = Annotated[
    bool,
    typer.Option(
        "--follow",
        help="Read a log that still grows (rotation and truncation included), until --until or "
        "Ctrl-C; facts are shown on standard error as they come.",
    ),
]
UntilOption = Annotated[
    Until,
    typer.Option(
        "--until",
        help="With --follow: startup (complete or failed), expected (everything expected was "
        "seen) or stopped (the server stopped or died).",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        min=0,
        callback=finite,
        help="With --follow: longest wait in seconds.",
        show_default=False,
    ),
]
Format = Annotated[ReportFormat, typer.Option("--format", help="How to report.")]
