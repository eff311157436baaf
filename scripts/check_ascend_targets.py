"""Reads the methods that the vllm-ascend hook wraps from real sources, without importing them.

usage: python scripts/check_ascend_targets.py FOLDER
FOLDER holds a vllm_ascend package: an unpacked wheel, or a checkout. Exit status 1: a target does
not fit.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from hwtune.adapters.vllm.ascend_hook import TARGETS


def parameters_of(source: str, owner: str, method: str) -> tuple[str, ...] | None:
    """Parameter names of a method; None when the class or the method is not there."""
    for item in ast.parse(source).body:
        if isinstance(item, ast.ClassDef) and item.name == owner:
            for inner in item.body:
                if isinstance(inner, ast.FunctionDef) and inner.name == method:
                    return tuple(argument.arg for argument in inner.args.args)
    return None


def main(folder: Path) -> int:
    status = 0
    for target in TARGETS:
        path = folder.joinpath(*target.module.split(".")).with_suffix(".py")
        found = None
        if path.exists():
            source = path.read_text(encoding="utf-8")
            found = parameters_of(source, target.owner, target.method)
        if found is None:
            # 310P's own method came after 0.18; where it is not, the base's is inherited.
            inherited = target.owner.endswith("310")
            verdict = "inherited" if inherited else "MISSING"
        else:
            inherited = False
            verdict = "fits" if found[: len(target.parameters)] == target.parameters else "DIFFERS"
        status |= verdict in ("MISSING", "DIFFERS")
        print(f"{verdict:9}  {target.name}({', '.join(found or ())})")
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
