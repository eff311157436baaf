"""Launch plans on disk: one JSON file that the launcher writes and every vLLM process reads."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from hwtune.domain.errors import InputError
from hwtune.domain.json_text import parse_json
from hwtune.domain.launch import PLAN_SCHEMA_VERSION, LaunchPlan
from hwtune.io.typed import build

PLAN_FILE = "plan.json"


def plan_to_json(plan: LaunchPlan) -> str:
    """The plan as indented JSON, keys in declaration order."""
    return json.dumps(dataclasses.asdict(plan), indent=2)


def write_plan(plan: LaunchPlan, run_dir: Path) -> Path:
    """Writes ``plan.json`` whole or not at all, and returns its path."""
    path = run_dir / PLAN_FILE
    partial = path.with_suffix(".partial")
    partial.write_text(plan_to_json(plan) + "\n", encoding="utf-8")
    partial.replace(path)
    return path


def read_plan(path: Path) -> LaunchPlan:
    """Reads a plan.

    Raises:
        InputError: the file is missing, is not a plan, or has another schema version.
    """
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        message = f"{path}: cannot read the launch plan: {error.strerror}"
        raise InputError(message) from None
    except ValueError as error:
        message = f"{path}: not a launch plan: {error}"
        raise InputError(message) from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != PLAN_SCHEMA_VERSION:
        message = (
            f"{path}: launch plan has schema_version {version!r}, this hwtune reads "
            f"{PLAN_SCHEMA_VERSION}; write the plan again with the same hwtune"
        )
        raise InputError(message)
    try:
        return build(LaunchPlan, data)
    except TypeError as error:
        message = f"{path}: damaged launch plan: {error}"
        raise InputError(message) from None
