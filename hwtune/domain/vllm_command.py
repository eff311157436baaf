"""A pasted vLLM command line -> the model and vLLM's own flags."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hwtune.domain.errors import UsageError
from hwtune.domain.vllm_flags import takes_value

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_PYTHON = re.compile(r"(.*/)?python(\d+(\.\d+)?)?")
_VLLM = re.compile(r"(.*/)?vllm")
_SERVER_MODULE = "vllm.entrypoints.openai.api_server"
_CLI_MODULE = "vllm.entrypoints.cli.main"
_SWITCHES = (
    "--aggregate-engine-logging",
    "--async-scheduling",
    "--data-parallel-external-lb",
    "--data-parallel-hybrid-lb",
    "--enforce-eager",
    "--fully-sharded-loras",
    "--headless",
    "--language-model-only",
    "--return-tokens-as-token-ids",
    "--skip-mm-profiling",
    "--skip-tokenizer-init",
    "--trust-remote-code",
    "--trust-request-chat-template",
    "--use-replayssm",
    "--use-tqdm-on-load",
    "-O0",
    "-O1",
    "-O2",
    "-O3",
    "-asc",
    "-dph",
    "-dpe",
)
"""Flags without a value, beside those that begin as below."""
_SWITCH_STARTS = ("--no-", "--enable-", "--disable-")
_NOT_SWITCHES = ("--disable-access-log-for-endpoints",)
_MANY_VALUES = (
    "--allowed-origins",
    "--api-key",
    "--cudagraph-capture-sizes",
    "--default-chat-template-kwargs",
    "--kv-cache-dtype-skip-layers",
    "--lora-modules",
    "--middleware",
    "--served-model-name",
)


def split_command(words: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The model that a command line names, and its flags with their values.

    A flag this module does not know is taken to have one value, which is never mistaken for the
    model.

    Raises:
        UsageError: no model, or more than one.
    """
    rest = _without_launcher(words)
    positionals: list[str] = []
    flags: list[str] = []
    named = None
    at = 0
    while at < len(rest):
        if not _is_flag(rest[at]):
            positionals.append(rest[at])
            at += 1
            continue
        end = _end_of_flag(rest, at)
        flags += rest[at:end]
        named = _model_flag(rest[at:end]) or named
        at = end
    return _one_model(positionals, named, rest), tuple(flags)


def _one_model(positionals: Sequence[str], named: str | None, words: Sequence[str]) -> str:
    if len(positionals) > 1:
        message = (
            f"{positionals[1][:80]!r} is one argument too many: the model is "
            f"{positionals[0][:80]!r}; a flag's value belongs directly behind its flag"
        )
        raise UsageError(message)
    if positionals:
        return positionals[0]
    if named is not None:
        return named
    message = "the model is missing; put it before vLLM's flags"
    if words and not _is_flag(words[-1]) and len(words) > 1:
        message += f" ({words[-1][:80]!r} was read as a value of {words[-2][:80]})"
    raise UsageError(message)


def _without_launcher(words: Sequence[str]) -> Sequence[str]:
    """The words behind ``vllm serve`` or ``python -m vllm...``, if they begin so."""
    rest = list(words)
    while len(rest) > 1 and _ASSIGNMENT.fullmatch(rest[0]):
        rest.pop(0)
    if rest[:1] == ["serve"] and len(rest) > 1:
        return rest[1:]
    if len(rest) > 1 and _VLLM.fullmatch(rest[0]) and rest[1] == "serve":
        return rest[2:]
    if len(rest) > 2 and _PYTHON.fullmatch(rest[0]) and rest[1] == "-m":
        if rest[2] == _SERVER_MODULE:
            return rest[3:]
        if rest[2] == _CLI_MODULE and rest[3:4] == ["serve"]:
            return rest[4:]
    return words


def _is_flag(word: str) -> bool:
    return word.startswith("-") and word != "-"


def _model_flag(words: Sequence[str]) -> str | None:
    name, equals, attached = words[0].partition("=")
    if name != "--model":
        return None
    return attached if equals else words[1] if len(words) > 1 else None


def _end_of_flag(words: Sequence[str], at: int) -> int:
    """The position behind a flag and its values."""
    name, equals, _ = words[at].partition("=")
    if name.startswith("--"):
        name = name.replace("_", "-")
    if equals or not _has_value(name):
        return at + 1
    end = at + 1
    most = len(words) if name in _MANY_VALUES else at + 2
    while end < min(most, len(words)) and not _is_flag(words[end]):
        end += 1
    return end


def _has_value(name: str) -> bool:
    known = takes_value(name)
    if known is not None:
        return known
    if name in _SWITCHES:
        return False
    return name in _NOT_SWITCHES or not name.startswith(_SWITCH_STARTS)
