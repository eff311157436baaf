"""Files that ship inside the package for reports."""

from __future__ import annotations

from importlib import resources


def read_asset(name: str) -> str:
    """Text of a file of ``hwtune/report/assets``."""
    folder = resources.files("hwtune.report") / "assets"
    return (folder / name).read_text(encoding="utf-8")
