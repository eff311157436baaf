"""Launch constants as a piece of a profile, and back."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hwtune.domain.errors import ExternalFailureError


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """What is written under a profile's ``[[kernels]]``."""

    tuning: Mapping[str, int]
    source: str
    """How the constants were found, when, and where; one line."""
    command: str
    """What found them."""
    head_sizes: tuple[int, ...] = ()
    """Only for these head sizes; empty for all."""
    page_not_multiple_of: int | None = None
    """Only for pages that are no multiple of this; None for all."""


def fragment_text(fragment: Fragment) -> str:
    """TOML to paste under the kernel's ``[kernels.when]``: ``[kernels.tuning]``, or, for some
    layers or pages only, ``[[kernels.tuned]]``.

    Raises:
        ExternalFailureError: what was written does not read back as what was meant.
    """
    lines = [f"# {fragment.command}"]
    special = bool(fragment.head_sizes) or fragment.page_not_multiple_of is not None
    if special:
        lines += ["[[kernels.tuned]]", f"source = {_quoted(fragment.source)}"]
        if fragment.head_sizes:
            lines.append(f"head_sizes = {list(fragment.head_sizes)}")
        if fragment.page_not_multiple_of is not None:
            lines.append(f"page_not_multiple_of = {fragment.page_not_multiple_of}")
        lines += ["", "[kernels.tuned.tuning]"]
    else:
        lines += [f"# {' '.join(fragment.source.split())}", "[kernels.tuning]"]
    lines += [f"{name} = {value}" for name, value in fragment.tuning.items()]
    text = "\n".join(lines) + "\n"
    table: dict[str, Any] = _toml(text)["kernels"]
    read = table["tuned"][0]["tuning"] if special else table["tuning"]
    if read != dict(fragment.tuning):
        message = f"the fragment reads back as {read}, not {dict(fragment.tuning)}"
        raise ExternalFailureError(message)
    return text


def _quoted(text: str) -> str:
    """A TOML basic string; JSON's escapes are a part of TOML's."""
    return json.dumps(" ".join(text.split()), ensure_ascii=False)


def _toml(text: str) -> dict[str, Any]:
    reader = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    data: dict[str, Any] = reader.loads(text)
    return data
