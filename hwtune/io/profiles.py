"""Packaged or user TOML -> HardwareProfile."""

from __future__ import annotations

import importlib
import sys
from dataclasses import MISSING, fields
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from hwtune.domain.errors import InputError
from hwtune.domain.hardware import HardwareProfile
from hwtune.domain.kernel import KernelConditions, KernelSpec, TunedFor
from hwtune.domain.units import LARGEST_SIZE

_SHORTEST_SOURCE = 2
_ALIGNMENTS = ("default_alignment_tokens", "required_alignment_tokens")
_SOURCED = (
    "default_alignment_tokens",
    "required_alignment_tokens",
    "memory_bytes",
    "memory_bandwidth_bytes_per_s",
)
_DEVICES = ("cuda", "rocm", "npu", "cpu")
_OPTIONAL: dict[str, Any] = {
    "memory_bytes": None,
    "memory_bandwidth_bytes_per_s": None,
    "kernels": (),
    "sources": {},
}
_WRITTEN = tuple(field.name for field in fields(HardwareProfile) if field.name != "name")


def profile_names() -> tuple[str, ...]:
    """Names of the packaged profiles, sorted."""
    return tuple(sorted(path.stem for path in _folder().glob("*.toml")))


def load_profile(name_or_path: str) -> HardwareProfile:
    """A packaged profile by name or alias, or any profile by path.

    Raises:
        InputError: no such profile (with the nearest names), or the file is not a good profile.
    """
    packaged = _folder() / f"{name_or_path}.toml"
    if name_or_path in profile_names():
        return _read(packaged)
    if "/" in name_or_path or name_or_path.endswith(".toml"):
        return _read(Path(name_or_path).expanduser())
    for name in profile_names():
        profile = _read(_folder() / f"{name}.toml")
        if name_or_path in profile.aliases:
            return profile
    raise _unknown(name_or_path)


def _unknown(name: str) -> InputError:
    near = get_close_matches(name, profile_names(), n=3, cutoff=0.4)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return InputError(f"unknown profile {name!r}; known: {', '.join(profile_names())}{hint}")


def _folder() -> Path:
    import hwtune_profiles

    return Path(next(iter(hwtune_profiles.__path__)))


def _read(path: Path) -> HardwareProfile:
    data = _toml(path)
    _check_keys(path, data, _WRITTEN)
    values = _OPTIONAL | data
    values["kernels"] = tuple(
        _kernel(path, index, item) for index, item in enumerate(_tables(path, data, "kernels"))
    )
    values = _typed(path, "", HardwareProfile, values | {"name": path.stem})
    profile = HardwareProfile(**values)
    _check(path, profile)
    return profile


def _toml(path: Path) -> dict[str, Any]:
    # tomli is tomllib's origin, for Python 3.10.
    reader = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        data: dict[str, Any] = reader.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        message = f"{path}: cannot be read: {error.strerror}"
        raise InputError(message) from None
    except (ValueError, RecursionError) as error:
        message = f"{path}: not TOML: {error}"
        raise InputError(message) from None
    return data


def _tables(path: Path, data: dict[str, Any], name: str) -> list[dict[str, Any]]:
    tables = data.get(name.rpartition(".")[2], [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        message = f"{path}: '{name}' must be an array of tables"
        raise InputError(message)
    return tables


def _kernel(path: Path, index: int, table: dict[str, Any]) -> KernelSpec:
    where = f"kernels[{index}]."
    _check_keys(path, table, tuple(field.name for field in fields(KernelSpec)), where)
    when = table.get("when")
    if not isinstance(when, dict):
        message = f"{path}: '{where}when' is missing"
        raise InputError(message)
    names = tuple(field.name for field in fields(KernelConditions))
    _check_keys(path, when, names, f"{where}when.")
    conditions = KernelConditions(**_typed(path, f"{where}when.", KernelConditions, when))
    nested = {"when": conditions, "tuned": _tuned(path, where, table)}
    return KernelSpec(**_typed(path, where, KernelSpec, table | nested))


def _tuned(path: Path, where: str, table: dict[str, Any]) -> tuple[TunedFor, ...]:
    found = []
    for index, item in enumerate(_tables(path, table, f"{where}tuned")):
        inside = f"{where}tuned[{index}]."
        _check_keys(path, item, tuple(field.name for field in fields(TunedFor)), inside)
        special = TunedFor(**_typed(path, inside, TunedFor, item))
        if len(special.source.strip()) < _SHORTEST_SOURCE:
            message = f"{path}: '{inside}source' is empty; say how the constants were found"
            raise InputError(message)
        multiple = special.page_not_multiple_of
        if multiple is not None and not 1 <= multiple <= LARGEST_SIZE:
            message = f"{path}: '{inside}page_not_multiple_of' must be at least 1, not {multiple}"
            raise InputError(message)
        found.append(special)
    return tuple(found)


def _check_keys(path: Path, data: dict[str, Any], known: tuple[str, ...], where: str = "") -> None:
    for key in data:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            message = f"{path}: unknown key '{where}{key}'{hint}"
            raise InputError(message)


def _typed(path: Path, where: str, target: type, data: dict[str, Any]) -> dict[str, Any]:
    """The values with lists as tuples; every field must be there and of its declared type."""
    hints = get_type_hints(target)
    result = {}
    for field in fields(target):
        if field.name not in data:
            if field.default is MISSING and field.default_factory is MISSING:
                message = f"{path}: key '{where}{field.name}' is missing"
                raise InputError(message)
            continue
        value = data[field.name]
        value = tuple(value) if isinstance(value, list) else value
        if not _fits(value, hints[field.name]):
            message = f"{path}: key '{where}{field.name}' has the wrong type: {value!r}"
            raise InputError(message)
        result[field.name] = value
    return result


def _fits(value: object, hint: object) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is UnionType:
        return any(_fits(value, argument) for argument in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, arguments[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(v, arguments[1]) for v in value.values())
    if origin is not None:
        return value in arguments
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is type(None):
        return value is None
    if isinstance(value, bool):
        return hint is bool
    return isinstance(hint, type) and isinstance(value, hint)


def _check(path: Path, profile: HardwareProfile) -> None:
    """Raises InputError for a number without a source or out of range."""
    for name in _SOURCED:
        value = getattr(profile, name)
        if value is None:
            continue
        if len(profile.sources.get(name, "").strip()) < _SHORTEST_SOURCE:
            message = f"{path}: '{name}' has no source; say in sources.{name} where it is from"
            raise InputError(message)
        if not 0 < value < 2**62:
            message = f"{path}: '{name}' must be positive, not {value}"
            raise InputError(message)
        if name in _ALIGNMENTS and value > LARGEST_SIZE:
            message = f"{path}: '{name}' must be at most {LARGEST_SIZE} (2**31), not {value}"
            raise InputError(message)
    if profile.device not in _DEVICES:
        message = f"{path}: 'device' must be one of {', '.join(_DEVICES)}, not {profile.device!r}"
        raise InputError(message)
    for kernel in profile.kernels:
        _check_kernel(path, kernel)


def _check_kernel(path: Path, kernel: KernelSpec) -> None:
    when = kernel.when
    if len(kernel.source.strip()) < _SHORTEST_SOURCE:
        message = f"{path}: kernel '{kernel.name}' has no source"
        raise InputError(message)
    if not 1 <= when.min_query_len <= when.max_query_len:
        message = (
            f"{path}: kernel '{kernel.name}': min_query_len must be at least 1 and not above "
            "max_query_len"
        )
        raise InputError(message)
    if not 1 <= when.block_size_multiple_of <= LARGEST_SIZE:
        message = (
            f"{path}: kernel '{kernel.name}': block_size_multiple_of must be at least 1 and at "
            f"most {LARGEST_SIZE} (2**31)"
        )
        raise InputError(message)
