"""``hwtune doctor``: can a server run here as planned, and what stands in its way."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

ReportFormat = Literal["table", "json", "markdown"]


def doctor(
    profile: Annotated[
        str | None,
        typer.Option(help="Hardware profile to judge for [the one that fits the device]."),
    ] = None,
    python: Annotated[
        str | None, typer.Option(help="The Python that has vLLM [the one that runs hwtune].")
    ] = None,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="The port a server would listen on.")
    ] = 8000,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Also import torch and vLLM, each in a process of its own."),
    ] = False,
    form: Annotated[
        ReportFormat | None,
        typer.Option("--format", show_default="table", help="markdown is meant for an issue."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Look at accelerator, vLLM, plugins, leftovers and limits before a server starts.

    Reads only: starts no server, ends no process, removes no file.

    Exit status: 0 no problem found, 1 a problem found, 2 usage, 3 bad profile or Python.
    """
    from hwtune.adapters.doctor.collect import collect
    from hwtune.domain.doctor.diagnose import diagnose
    from hwtune.domain.errors import ANSWER_IS_NO, UsageError
    from hwtune.io.profiles import load_profile, profile_names
    from hwtune.report.doctor import doctor_to_json, doctor_to_markdown, doctor_to_text

    if as_json and form not in (None, "json"):
        message = f"--json and --format {form} do not go together"
        raise UsageError(message)
    named = None if profile is None else load_profile(profile)
    packaged = [load_profile(name) for name in profile_names()]
    report = diagnose(collect(python=python, port=port, deep=deep), packaged, named)
    show = {"table": doctor_to_text, "json": doctor_to_json, "markdown": doctor_to_markdown}
    typer.echo(show["json" if as_json else form or "table"](report))
    if not report.healthy:
        raise typer.Exit(ANSWER_IS_NO)
