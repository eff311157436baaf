"""Which options the user gave: one that would have no effect is refused, not passed over."""

from __future__ import annotations

import math
from collections.abc import Collection

import typer

from hwtune.domain.errors import UsageError


def on_command_line(context: typer.Context, name: str | None) -> bool:
    """Whether the user gave it, rather than a default."""
    source = context.get_parameter_source(name or "")
    return source is not None and source.name not in ("DEFAULT", "DEFAULT_MAP")


def given(context: typer.Context, *, but: Collection[str] = ()) -> list[str]:
    """The parameters that were given, in the words of the command line, but for the named ones."""
    found: list[str] = []
    for parameter in context.command.params:
        if parameter.name in but or not on_command_line(context, parameter.name):
            continue
        if parameter.param_type_name == "argument":
            value = context.params[parameter.name or ""]
            found += map(str, value if isinstance(value, (list, tuple)) else [value])
        else:
            found.append(parameter.opts[0])
    return found


def refuse_others(
    context: typer.Context, taken: Collection[str], why: str, *, flags: bool = False
) -> None:
    """Refuses everything on the command line but the named parameters.

    Args:
        context: of the command.
        taken: names of the parameters that have an effect.
        why: what they are beside.
        flags: whether vLLM's flags have an effect too.

    Raises:
        UsageError: ``why``, and what to leave out.
    """
    others = given(context, but=taken) + ([] if flags else context.args)
    if others:
        shown = [_shown(word[:80]) for word in others]
        message = f"{why}; leave out {', '.join(shown)}"
        raise UsageError(message)


def refuse_given(context: typer.Context, names: Collection[str], why: str) -> None:
    """Refuses the named parameters where the user gave them.

    Raises:
        UsageError: the first of them, and ``why`` it would have no effect.
    """
    for parameter in context.command.params:
        if parameter.name in names and on_command_line(context, parameter.name):
            message = f"{parameter.opts[0]} has no effect {why}"
            raise UsageError(message)


def finite(value: float | None) -> float | None:
    """Callback of an option: NaN compares with nothing, and infinity is no time to wait.

    Raises:
        typer.BadParameter: not a finite number; click names the option.
    """
    if value is not None and not math.isfinite(value):
        message = f"{value} is not a finite number."
        raise typer.BadParameter(message)
    return value


def _shown(word: str) -> str:
    return word if word.startswith("-") and word.isprintable() else repr(word)
