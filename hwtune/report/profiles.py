"""Hardware profiles as tables. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

from hwtune.domain.hardware import HardwareProfile
from hwtune.domain.kernel import KernelSpec
from hwtune.report.tables import Cell, Table, columns

_LIST = columns(
    "name=profile",
    "title=accelerator",
    "device=device",
    "engine=engine",
    "default_alignment_tokens=default alignment",
    "required_alignment_tokens=required alignment",
    "kernels=kernels",
    "verified_on_hardware=verified",
)
_SHOW = columns("name=field", "value=value", "source=source")
_FIELDS = (
    "name",
    "title",
    "device",
    "engine",
    "default_alignment_tokens",
    "required_alignment_tokens",
    "base_backend",
    "memory_bytes",
    "memory_bandwidth_bytes_per_s",
    "verified_on_hardware",
)


def profiles_table(profiles: Sequence[HardwareProfile]) -> Table:
    """One row per profile."""
    rows = tuple(
        (
            profile.name,
            profile.title,
            profile.device,
            profile.engine,
            profile.default_alignment_tokens,
            profile.required_alignment_tokens,
            " ".join(kernel.name for kernel in profile.kernels) or None,
            profile.verified_on_hardware,
        )
        for profile in profiles
    )
    return Table(columns=_LIST, rows=rows)


def profile_record(profile: HardwareProfile) -> Table:
    """Every field of a profile with its source."""
    rows: list[tuple[Cell, ...]] = [
        (name, getattr(profile, name), profile.sources.get(name)) for name in _FIELDS
    ]
    for kernel in profile.kernels:
        rows += _kernel_rows(kernel)
    rows += [("note", note, None) for note in profile.notes]
    return Table(columns=_SHOW, rows=tuple(rows))


def _kernel_rows(kernel: KernelSpec) -> Iterator[tuple[Cell, ...]]:
    yield f"kernel {kernel.name}", kernel.implementation, kernel.source
    for field in fields(kernel.when):
        value = getattr(kernel.when, field.name)
        if value not in (None, ()):
            text = " ".join(map(str, value)) if isinstance(value, tuple) else value
            yield f"  {field.name}", text, None
    if kernel.provider:
        yield "  provider", kernel.provider, None
    for name, number in kernel.tuning.items():
        yield f"  tuning {name}", number, None
    for special in kernel.tuned:
        conditions = []
        if special.head_sizes:
            conditions.append(f"head size {' or '.join(map(str, special.head_sizes))}")
        if special.page_not_multiple_of:
            conditions.append(f"page not a multiple of {special.page_not_multiple_of}")
        for name, number in special.tuning.items():
            yield f"  tuning {name}, {' and '.join(conditions) or 'always'}", number, special.source
