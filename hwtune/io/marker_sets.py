"""Packaged marker and diagnosis tables (TOML) -> values."""

from __future__ import annotations

import functools
import importlib
import re
import sys
from importlib import resources
from typing import Any, cast

from hwtune.domain.check_records import Clue, DiagnosisRule
from hwtune.domain.errors import InputError
from hwtune.domain.evidence import Value
from hwtune.domain.marker_set import (
    FactRule,
    Marker,
    MarkerKind,
    MarkerSet,
    Merge,
    StartKind,
    ValueType,
    literal_prefix,
)

# tomli is tomllib's origin, for Python 3.10.
_toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

_FACTS = "facts.toml"
_DIAGNOSES = "diagnoses.toml"
TRACE_BUCKETS = "trace_buckets.toml"
"""Names in profiler traces; not of log lines."""


@functools.cache
def load_markers() -> MarkerSet:
    """Every marker of every packaged table.

    Raises:
        InputError: a table is malformed; names the file and the marker.
    """
    markers: list[Marker] = []
    for name in _table_names():
        for entry in read_table(name).get("marker", []):
            markers.append(_marker(name, entry))
    facts = {name: _fact(name, entry) for name, entry in read_table(_FACTS)["fact"].items()}
    return MarkerSet(markers=tuple(markers), facts=facts)


def read_table(name: str) -> dict[str, Any]:
    """One packaged TOML file of ``hwtune/markers``."""
    path = resources.files("hwtune").joinpath("markers").joinpath(name)
    return cast("dict[str, Any]", _toml.loads(path.read_text(encoding="utf-8")))


def _table_names() -> list[str]:
    entries = resources.files("hwtune").joinpath("markers").iterdir()
    names = sorted(entry.name for entry in entries if entry.name.endswith(".toml"))
    return [name for name in names if name not in (_FACTS, _DIAGNOSES, TRACE_BUCKETS)]


def _marker(file: str, entry: dict[str, Any]) -> Marker:
    try:
        begins = tuple(entry.get("begins", ()))
        starts = tuple(entry.get("starts", begins or (literal_prefix(entry["pattern"]),)))
        return Marker(
            id=entry["id"],
            kind=cast("MarkerKind", entry.get("kind", "fact")),
            begins=begins,
            starts=starts,
            contains=_texts(entry.get("contains", list(starts))),
            pattern=re.compile(entry["pattern"]),
            fact=entry.get("fact"),
            type=cast("ValueType", entry.get("type", "str")),
            constant=_constant(entry.get("constant")),
            rank=entry.get("rank", 0),
            bare=entry.get("bare", False),
            plain=entry.get("plain", False),
            echo=entry.get("echo", False),
            once=entry.get("once", False),
            not_from=tuple(entry.get("not_from", ())),
            start=cast("StartKind | None", entry.get("start")),
            meaning=entry["meaning"],
            versions=entry["versions"],
            source=entry["source"],
            examples=_texts(entry["example"]),
            counter_examples=_texts(entry["counter_example"]),
        )
    except (KeyError, TypeError, re.error) as error:
        message = f"markers/{file}: marker {entry.get('id')!r}: {error!r}"
        raise InputError(message) from None


def _texts(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _constant(value: Any) -> Value | None:  # noqa: ANN401 - whatever TOML holds
    return tuple(value) if isinstance(value, list) else cast("Value | None", value)


def _fact(name: str, entry: dict[str, str]) -> FactRule:
    return FactRule(
        name=name,
        title=entry["title"],
        merge=cast("Merge", entry["merge"]),
        unit=entry.get("unit", ""),
    )


@functools.cache
def load_diagnoses() -> tuple[DiagnosisRule, ...]:
    """The packaged diagnosis rules, in their order.

    Raises:
        InputError: a rule is malformed; names it.
    """
    return tuple(_diagnosis(entry) for entry in read_table(_DIAGNOSES)["diagnosis"])


def _diagnosis(entry: dict[str, Any]) -> DiagnosisRule:
    try:
        return DiagnosisRule(
            id=entry["id"],
            checks=tuple(entry["checks"]),
            cause=entry["cause"],
            next_step=entry["next_step"],
            requires=_clues(entry.get("requires", [])),
            supports=_clues(entry.get("supports", [])),
            contradicts=_clues(entry.get("contradicts", [])),
            example=entry.get("example", {}),
            counter_example=entry.get("counter_example", {}),
        )
    except (KeyError, TypeError) as error:
        message = f"markers/{_DIAGNOSES}: diagnosis {entry.get('id')!r}: {error!r}"
        raise InputError(message) from None


def _clues(entries: list[dict[str, Any]]) -> tuple[Clue, ...]:
    return tuple(
        Clue(**{**entry, "contains": _texts(entry.get("contains", []))}) for entry in entries
    )
