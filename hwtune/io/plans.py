"""Launch plans on disk: one JSON file that the launcher writes and every vLLM process reads."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Any

from hwtune.domain.errors import InputError
from hwtune.domain.json_text import parse_json
from hwtune.domain.kernel import KernelConditions, KernelSpec, TunedFor
from hwtune.domain.launch import PLAN_SCHEMA_VERSION, AddedFlag, Expectation, LaunchPlan

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
        plan = _plan(data)
        _check_types(plan)
        _check_types(plan.expect)
        for kernel in plan.kernels:
            _check_types(kernel)
            _check_types(kernel.when)
            for special in kernel.tuned:
                _check_types(special)
        return plan
    except (TypeError, KeyError, AttributeError) as error:
        message = f"{path}: damaged launch plan: {error}"
        raise InputError(message) from None


def _check_types(
    record: LaunchPlan | Expectation | KernelSpec | KernelConditions | TunedFor,
) -> None:
    """Raises TypeError for a field whose value is not of its declared type."""
    hints = typing.get_type_hints(type(record))
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if not isinstance(value, _runtime_types(hints[field.name])):
            message = f"{field.name} is {value!r}"
            raise TypeError(message)


def _runtime_types(hint: Any) -> tuple[type, ...]:  # noqa: ANN401 - a type hint is any object
    """What isinstance can check of a hint: unions taken apart, type arguments left out."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return tuple(kind for part in typing.get_args(hint) for kind in _runtime_types(part))
    if origin is typing.Literal:
        return (str,)
    plain: type = origin or hint
    return (float, int) if plain is float else (plain,)


def _plan(data: dict[str, Any]) -> LaunchPlan:
    expect = dict(data.pop("expect"))
    expect["kernels"] = tuple(expect["kernels"])
    return LaunchPlan(
        kernels=tuple(_kernel(item) for item in data.pop("kernels")),
        argv=tuple(data.pop("argv")),
        added=tuple(AddedFlag(**item) for item in data.pop("added")),
        notes=tuple(data.pop("notes")),
        expect=Expectation(**expect),
        **data,
    )


def _kernel(data: dict[str, Any]) -> KernelSpec:
    conditions: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in data.pop("when").items()
    }
    tuned = tuple(
        TunedFor(**item | {"head_sizes": tuple(item.get("head_sizes", ()))})
        for item in data.pop("tuned", ())
    )
    return KernelSpec(when=KernelConditions(**conditions), tuned=tuned, **data)
