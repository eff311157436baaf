"""The command line. Each command is one module, loaded only when it is the one asked for."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import signal
import sys
import traceback
from typing import Any

import typer

from hwtune.domain.errors import HwtuneError

_PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}

COMMANDS: dict[str, tuple[str, dict[str, Any]]] = {
    "derive-page": ("derive_page", {"context_settings": _PASS_THROUGH}),
    "serve": ("serve", {"context_settings": _PASS_THROUGH}),
    "verify-markers": ("verify_markers", {}),
    "ab-bench": ("ab_bench", {}),
    "simulate": ("simulate", {"context_settings": _PASS_THROUGH}),
    "profiles": ("profiles", {}),
    "doctor": ("doctor", {}),
}
"""Command -> module in this package, and what typer is told about it."""


def _new_app() -> typer.Typer:
    return typer.Typer(
        name="hwtune",
        rich_markup_mode=None,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=True,
        callback=_root,
    )


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"hwtune {version('hwtune')}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and stop."
    ),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    """Derive, launch, prove and measure vLLM's KV-cache page on special hardware."""


def build_app(arguments: list[str]) -> typer.Typer:
    """The application with the commands that ``arguments`` can reach."""
    app = _new_app()
    named = [argument for argument in arguments if argument in COMMANDS][:1]
    for name in named or COMMANDS:
        module, options = COMMANDS[name]
        _register(app, name, module, options)
    return app


def _register(app: typer.Typer, name: str, module: str, options: dict[str, Any]) -> None:
    loaded = importlib.import_module(f"hwtune.cli.{module}")
    if hasattr(loaded, "app"):
        app.add_typer(loaded.app, name=name)
    else:
        app.command(name, **options)(getattr(loaded, module))


def _interrupt(signum: int, frame: object) -> None:
    """SIGTERM and SIGHUP end a command the way Ctrl-C does: with everything cleaned up."""
    with contextlib.suppress(OSError):  # standard error may be a file on a full disk
        os.write(2, b"hwtune: stopping\n")
    raise KeyboardInterrupt


def _debug(arguments: list[str]) -> bool:
    """Whether ``--debug`` was given to hwtune; after the command it may be vLLM's."""
    before = itertools.takewhile(lambda argument: argument not in COMMANDS, arguments)
    return "--debug" in before


def _open_missing_streams() -> None:
    """Gives closed standard streams the null device, or a file opened later would get their number
    and what is printed."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def main() -> None:
    """Entry point: errors become one line and an exit status, never a traceback."""
    _open_missing_streams()
    arguments = sys.argv[1:]
    for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(stop) is not signal.SIG_IGN:  # nohup, or a shell's background job
            signal.signal(stop, _interrupt)
    try:
        build_app(arguments)()
    except HwtuneError as error:
        if _debug(arguments):
            traceback.print_exc()
        typer.echo(f"hwtune: error: {error}", err=True)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        typer.echo("hwtune: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) has gone; nothing is left to say, not even at interpreter exit.
        sys.stderr.close()
        sys.exit(141)
