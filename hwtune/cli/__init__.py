"""The command line. Each command is one module, loaded only when it is the one asked for."""

from __future__ import annotations

import contextlib
import errno
import importlib
import itertools
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import typer

from hwtune.cli.streams import open_missing_streams, protect_streams
from hwtune.domain.errors import HwtuneError, InputError
from hwtune.domain.plain_text import one_line

_PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}

COMMANDS: dict[str, tuple[str, dict[str, Any]]] = {
    "derive-page": ("derive_page", {"context_settings": _PASS_THROUGH}),
    "serve": ("serve", {"context_settings": _PASS_THROUGH}),
    "verify-markers": ("verify_markers", {}),
    "ab-bench": ("ab_bench", {}),
    "tune-kernels": ("tune_kernels", {}),
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


def _run(arguments: list[str]) -> None:
    try:
        build_app(arguments)()
    except SystemExit:
        # click ends with 1, "the answer is no", when the reader has gone, and leaves this behind.
        if type(sys.stdout).__name__ == "PacifyFlushWrapper":
            raise BrokenPipeError from None
        raise
    finally:
        sys.stdout.flush()  # a full disk or a reader that has gone is known here, not at exit


_LONGEST_ERROR = 1500
"""Characters of one line that a user still reads; a value in it may have any length."""


def _fail(text: str, status: int) -> NoReturn:
    shown = one_line(" ".join(text.splitlines()))
    if len(shown) > _LONGEST_ERROR:
        shown = f"{shown[:_LONGEST_ERROR]}… ({len(shown):,} characters)"
    typer.echo(f"hwtune: error: {shown}", err=True)
    sys.exit(status)


def _place(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


_WRONG_PATH = (
    *(errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP),
    *(errno.EACCES, errno.EPERM),
)
"""What is wrong with a path that was named; everything else is the machine's."""


def _fail_outside(error: OSError) -> None:
    """Ends where the system refused a file that nobody spoke of before; returns for other errors."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what could not be printed is given up
        _fail(f"no room to write to: {error}", HwtuneError.exit_status)
    if error.filename is not None:
        wrong = error.errno in _WRONG_PATH
        status = InputError.exit_status if wrong else HwtuneError.exit_status
        _fail(f"{str(error.filename)[:200]}: {error.strerror}", status)


def main() -> None:
    """Entry point: errors become one line and an exit status, never a traceback.

    A bug has status 6 as well: what Python makes of it, 1, would read as "the answer is no".
    """
    open_missing_streams()
    protect_streams()
    arguments = sys.argv[1:]
    for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(stop) is not signal.SIG_IGN:  # nohup, or a shell's background job
            signal.signal(stop, _interrupt)
    try:
        _run(arguments)
    except HwtuneError as error:
        if _debug(arguments):
            traceback.print_exc()
        _fail(str(error), error.exit_status)
    except KeyboardInterrupt:
        typer.echo("hwtune: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) has gone; nothing is left to say, not even at interpreter exit.
        sys.stderr.close()
        sys.exit(141)
    except Exception as error:  # noqa: BLE001 - a bug must not end in status 1
        if _debug(arguments):
            traceback.print_exc()
        if isinstance(error, OSError):
            _fail_outside(error)
        hint = "a bug; hwtune --debug COMMAND shows where"
        _fail(f"{type(error).__name__}: {error} ({_place(error)}): {hint}", HwtuneError.exit_status)
