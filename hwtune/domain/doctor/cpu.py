"""What ``lscpu`` prints, read."""

from __future__ import annotations

from collections.abc import Mapping

from hwtune.domain.doctor.records import CommandOutput, Device, Line

LSCPU = ("lscpu",)
"""Asked with LC_ALL=C: the labels are translated otherwise."""


def fields(output: CommandOutput) -> Mapping[str, tuple[str, Line]]:
    """Label -> value and line; labels are indented in some versions."""
    found: dict[str, tuple[str, Line]] = {}
    for number, text in enumerate(output.stdout.splitlines(), start=1):
        key, colon, value = text.partition(":")
        if colon:
            line = Line(source=output.command, line=number, text=" ".join(text.split())[:200])
            found.setdefault(key.strip(), (value.strip(), line))
    return found


def parse_cpu(output: CommandOutput) -> Device | None:
    """The CPU as a device; None when the output is not lscpu's."""
    known = fields(output)
    if "Architecture" not in known:
        return None
    arch, line = known["Architecture"]
    name = known.get("Model name", (arch, line))
    return Device(
        kind="cpu",
        index="0",
        name=name[0],
        arch=arch,
        memory_bytes=None,
        used_bytes=None,
        evidence=name[1],
    )


def flags(output: CommandOutput) -> frozenset[str]:
    """Instruction sets, e.g. ``avx512_bf16``; Arm calls the line the same."""
    return frozenset(fields(output).get("Flags", ("", None))[0].split())
