"""The version of the vLLM installed beside hwtune, read without importing it."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

_VERSION = re.compile(
    r"""^(?:__)?version(?:__)?\s*(?:=|:\s*str\s*=)[^'"\n]*['"]([^'"]+)['"]""", re.MULTILINE
)


def installed_version(engine: str = "vllm") -> str | None:
    """E.g. ``0.32.0``; None when the engine is not installed or hides its version.

    Forks and CPU builds have other distribution names, so the package's own ``_version.py`` is
    read instead of the distribution's metadata.
    """
    spec = find_spec(engine.replace("-", "_"))
    if spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("_version.py").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    match = _VERSION.search(text)
    return match[1] if match else None
