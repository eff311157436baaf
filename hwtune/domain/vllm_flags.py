"""vLLM's own command-line flags -> Deployment; flags that do not move the page are ignored."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from hwtune.domain.deployment import Deployment
from hwtune.domain.errors import UsageError
from hwtune.domain.json_text import parse_json
from hwtune.domain.units import LARGEST_SIZE

_SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-q": "--quantization",
}
_JOINED = re.compile(r"(-tp|-pp)(\d+)")
_INTEGERS = {
    "--tensor-parallel-size": "tensor_parallel_size",
    "--pipeline-parallel-size": "pipeline_parallel_size",
    "--block-size": "block_size",
    "--mamba-block-size": "mamba_block_size",
    "--max-model-len": "max_model_len",
    "--max-num-batched-tokens": "max_num_batched_tokens",
    "--max-num-seqs": "max_num_seqs",
    "--replayssm-buffer-len": "replayssm_buffer_len",
}
_WORDS = {
    "--dtype": "dtype",
    "--kv-cache-dtype": "kv_cache_dtype",
    "--mamba-cache-dtype": "mamba_cache_dtype",
    "--mamba-ssm-cache-dtype": "mamba_ssm_cache_dtype",
    "--mamba-cache-mode": "mamba_cache_mode",
    "--attention-backend": "attention_backend",
}
_SWITCHES = {
    "--enable-prefix-caching": ("enable_prefix_caching", True),
    "--no-enable-prefix-caching": ("enable_prefix_caching", False),
    "--use-replayssm": ("use_replayssm", True),
}
_SPECULATIVE = "--speculative-config"
_SPECULATIVE_TOKENS = "--num-speculative-tokens"
_SKIP_LAYERS = "--kv-cache-dtype-skip-layers"
_UTILISATION = "--gpu-memory-utilization"
_OTHER_FLAGS = ("--data-parallel-size", "--no-use-replayssm")
"""Flags of vLLM whose names resemble one that moves the page."""
_SIZES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def deployment_from_flags(flags: Sequence[str]) -> tuple[Deployment, tuple[str, ...]]:
    """The deployment that a vLLM command line describes, and remarks about it.

    Accepts ``--flag value``, ``--flag=value``, underscores for dashes and vLLM's short forms;
    flags that have nothing to do with the page are skipped with their values.

    Raises:
        UsageError: a flag that moves the page has no value or a wrong one.
    """
    values: dict[str, Any] = {}
    notes: list[str] = []
    position = 0
    while position < len(flags):
        position = _take(flags, position, values, notes)
    return Deployment(**values), tuple(notes)


def takes_value(flag: str) -> bool | None:
    """Whether a flag that moves the page has a value; None for a flag that does not move it."""
    name, attached = _spelled(flag)
    if name in _SWITCHES or attached is not None:
        return False
    return True if _wanted(name) or name == _SKIP_LAYERS else None


def misspelt_flags(flags: Sequence[str]) -> tuple[str, ...]:
    """Remarks about flags that look like one that moves the page and are not it."""
    known = (*_INTEGERS, *_WORDS, *_SWITCHES, _SPECULATIVE, _SKIP_LAYERS)
    remarks = []
    for flag in flags:
        name = flag.partition("=")[0].replace("_", "-")
        if not name.startswith("--") or _wanted(name) or name in known or name in _OTHER_FLAGS:
            continue
        near = get_close_matches(name, known, n=1, cutoff=0.88)
        if near:
            remarks.append(f"{name} does not move the page and is ignored; did you mean {near[0]}?")
    return tuple(remarks)


def _take(flags: Sequence[str], at: int, values: dict[str, Any], notes: list[str]) -> int:
    """Reads one flag and gives the position after it."""
    text = flags[at]
    if not text.startswith("-"):
        return at + 1
    name, attached = _spelled(text)
    if name in _SWITCHES:
        field, value = _SWITCHES[name]
        values[field] = value
        return at + 1
    if name == _SKIP_LAYERS:
        return _take_skip_layers(flags, at, attached, values)
    if not _wanted(name):
        return at + 1
    following = flags[at + 1] if at + 1 < len(flags) else None
    value_text = following if attached is None else attached
    if value_text is None:
        message = f"{name}: a value is missing"
        raise UsageError(message)
    _store(name, value_text, values, notes)
    return at + (2 if attached is None else 1)


def _spelled(text: str) -> tuple[str, str | None]:
    """A flag's full name with dashes, and the value attached to it (``-tp4``, ``--dtype=half``)."""
    joined = _JOINED.fullmatch(text)
    if joined:
        return _SHORT[joined[1]], joined[2]
    name, equals, attached = text.partition("=")
    name = _SHORT.get(name, name)
    if name.startswith("--"):
        head, dot, tail = name[2:].partition(".")
        name = f"--{head.replace('_', '-')}{dot}{tail}"
    return name, attached if equals else None


def _wanted(name: str) -> bool:
    known = name in _INTEGERS or name in _WORDS
    special = name in (_SPECULATIVE, _SPECULATIVE_TOKENS, _UTILISATION)
    return known or special or name.startswith(f"{_SPECULATIVE}.")


def _store(name: str, text: str, values: dict[str, Any], notes: list[str]) -> None:
    if name in _INTEGERS:
        if name == "--max-model-len" and text in ("auto", "-1"):
            notes.append(f"{name} {text}: left to the model's own length")
            return
        values[_INTEGERS[name]] = _integer(name, text)
    elif name in _WORDS:
        values[_WORDS[name]] = text
    elif name == _UTILISATION:
        values["gpu_memory_utilization"] = _fraction(name, text)
    elif name == f"{_SPECULATIVE}.method":
        values["speculative_method"] = text
    elif name == _SPECULATIVE:
        values |= _speculation(text, notes)
    elif name.endswith("num_speculative_tokens") or name == _SPECULATIVE_TOKENS:
        values["num_speculative_tokens"] = _integer(name, text, minimum=0)


def _take_skip_layers(
    flags: Sequence[str], at: int, attached: str | None, values: dict[str, Any]
) -> int:
    end = at + 1
    layers = attached.split(",") if attached is not None else []
    while attached is None and end < len(flags) and not flags[end].startswith("-"):
        layers += flags[end].split(",")
        end += 1
    values["kv_cache_dtype_skip_layers"] = tuple(layer for layer in layers if layer)
    return end


def _integer(name: str, text: str, minimum: int = 1) -> int:
    """An integer, with vLLM's suffixes (``8k`` is 8000, ``8K`` 8192)."""
    body, factor = (text[:-1], _SIZES[text[-1]]) if text[-1:] in _SIZES else (text, 1)
    try:
        value = int(float(body) * factor) if factor > 1 else int(body)
    except (ValueError, OverflowError):
        message = f"{name} {text[:40]}: expected an integer"
        raise UsageError(message) from None
    if not minimum <= value <= LARGEST_SIZE:
        message = f"{name} {text[:40]}: must be from {minimum} to {LARGEST_SIZE} (2**31)"
        raise UsageError(message)
    return value


def _fraction(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        message = f"{name} {text[:40]}: expected a number above 0 and up to 1"
        raise UsageError(message)
    return value


def _speculation(text: str, notes: list[str]) -> dict[str, Any]:
    """Draft tokens and method of a --speculative-config object."""
    try:
        config = parse_json(text)
    except ValueError:
        message = f"{_SPECULATIVE}: not JSON: {text[:60]}"
        raise UsageError(message) from None
    if not isinstance(config, dict):
        message = f"{_SPECULATIVE}: expected a JSON object, not {text[:60]}"
        raise UsageError(message)
    method = config.get("method")
    fields = {"speculative_method": method} if isinstance(method, str) else {}
    return fields | {"num_speculative_tokens": _draft_tokens(config, notes)}


def _draft_tokens(config: dict[str, Any], notes: list[str]) -> int:
    count = config.get("num_speculative_tokens")
    if count is None:
        notes.append(f"{_SPECULATIVE} without num_speculative_tokens: counted as 0 draft tokens")
        return 0
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= 10_000:
        message = f"{_SPECULATIVE}: num_speculative_tokens must be an integer from 0 up"
        raise UsageError(message)
    return count
