"""hwtune profiles: what accelerators are known."""

from __future__ import annotations

from typing import Annotated

import typer

from hwtune.domain.errors import InputError
from hwtune.io.profiles import load_profile, profile_names
from hwtune.report.profiles import profile_record, profiles_table
from hwtune.report.tables import Format, render

_FORMAT = Annotated[Format, typer.Option("--format", help="How to print.")]

app = typer.Typer(help="Hardware profiles: list, show, validate.", no_args_is_help=True)


@app.command("list")
def list_profiles(
    format: _FORMAT = Format.TABLE,
) -> None:
    """List the packaged profiles."""
    loaded = [load_profile(name) for name in profile_names()]
    typer.echo(render(profiles_table(loaded), format))


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A profile's name or the path of a TOML file.")],
    format: _FORMAT = Format.TABLE,
) -> None:
    """Show one profile with the source of every number."""
    typer.echo(render(profile_record(load_profile(name)), format))


@app.command()
def validate(
    names: Annotated[
        list[str] | None, typer.Argument(help="Profiles to check; all packaged ones if none.")
    ] = None,
) -> None:
    """Check profiles: keys, types, and a source for every number."""
    failures: list[InputError] = []
    for name in names or profile_names():
        try:
            profile = load_profile(name)
        except InputError as error:
            failures.append(error)
        else:
            typer.echo(f"{profile.name}: good ({len(profile.kernels)} kernels)")
    for failure in failures[:-1]:
        typer.echo(f"hwtune: error: {failure}", err=True)
    if failures:
        raise failures[-1]
