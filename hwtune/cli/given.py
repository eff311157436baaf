"""Which options the user gave: one that would have no effect is refused, not passed over."""

from __future__ import annotations

from collections.abc import Collection

import typer

from hwtune.domain.errors import UsageError


def on_command_line(context: typer.Context, name: str | None) -> bool:
    """Whether the user gave it, rather than a default."""
    source = context.get_parameter_source(name or "")
    return source is not None and source.name not in ("DEFAULT", "DEFAULT_MAP")


def given(context: typer.Context, *, but: Collection[str] = ()) -> list[str]:
    """The parameters that were given, in the words of the command line, but for the named ones."""
    return [
        str(context.params[parameter.name or ""])
        if parameter.param_type_name == "argument"
        else parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in but and on_command_line(context, parameter.name)
    ]


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


def _shown(word: str) -> str:
    return word if word.startswith("-") and word.isprintable() else repr(word)
