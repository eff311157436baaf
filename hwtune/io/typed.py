"""Dataclasses out of JSON: every value has the type that its field declares."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from typing import Any, Literal, TypeVar

LARGEST = 2**63
"""Whole numbers beyond it are damage, and arithmetic on floats would overflow."""


_T = TypeVar("_T")


def build(cls: type[_T], data: object) -> _T:
    """An instance of a dataclass, nested ones included.

    Raises:
        TypeError: a key is missing or unknown, or a value has the wrong type; names the key.
    """
    if not isinstance(data, dict):
        message = f"expected an object, not {_shown(data)}"
        raise TypeError(message)
    hints = typing.get_type_hints(cls)
    unknown = sorted(set(data) - set(hints))
    if unknown:
        message = f"unknown key {_shown(unknown[0])}"
        raise TypeError(message)
    values: dict[str, Any] = {key: _value(hints[key], value, key) for key, value in data.items()}
    return cls(**values)


def _value(kind: object, value: object, key: str) -> object:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None and types.NoneType in arguments:
            return None
        return _value(next(a for a in arguments if a is not types.NoneType), value, key)
    if origin is tuple:
        if not isinstance(value, list):
            raise _wrong(key, "a list", value)
        return tuple(_value(arguments[0], item, key) for item in value)
    if origin is dict:
        if not isinstance(value, dict):
            raise _wrong(key, "an object", value)
        return {name: _value(arguments[1], item, f"{key}.{name}") for name, item in value.items()}
    if origin is Literal:
        if (not isinstance(value, str) and type(value) is not int) or value not in arguments:
            raise _wrong(key, f"one of {', '.join(map(repr, arguments))}", value)
        return value
    if dataclasses.is_dataclass(kind):
        return build(typing.cast("type[Any]", kind), value)
    return _plain(typing.cast("type[object]", kind), value, key)


def _plain(kind: type, value: object, key: str) -> object:
    if kind is float:
        return number(value, key)
    if kind is int and (type(value) is not int or abs(value) > LARGEST):
        raise _wrong(key, "a whole number", value)
    if type(value) is not kind:
        raise _wrong(key, kind.__name__, value)
    return value


def number(value: object, key: str) -> float:
    """A finite number.

    Raises:
        TypeError: anything else; names the key.
    """
    whole = type(value) is int and abs(value) <= LARGEST
    if not whole and not (isinstance(value, float) and math.isfinite(value)):
        raise _wrong(key, "a finite number", value)
    return typing.cast("float", value)


def _wrong(key: str, wanted: str, value: object) -> TypeError:
    return TypeError(f"{key}: expected {wanted}, not {_shown(value)}")


def _shown(value: object) -> str:
    """Short and on one line, however large the value."""
    if isinstance(value, int) and abs(value) > LARGEST:
        return "a huge number"
    text = repr(value) if isinstance(value, str | int | float | None) else type(value).__name__
    return text if len(text) <= 40 else text[:37] + "..."
