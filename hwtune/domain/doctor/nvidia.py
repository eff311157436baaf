"""What ``nvidia-smi`` prints, read."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator

from hwtune.domain.doctor.records import MIB, CommandOutput, Device, DeviceProcess, Line

GPU_FIELDS = ("index", "name", "compute_cap", "memory.total", "memory.used", "driver_version")
GPU_QUERY = (
    "nvidia-smi",
    f"--query-gpu={','.join(GPU_FIELDS)}",
    "--format=csv,noheader,nounits",
)
OLD_GPU_FIELDS = tuple(name for name in GPU_FIELDS if name != "compute_cap")
"""Drivers before 510 do not know ``compute_cap`` (470 answers "not a valid field to query")."""
OLD_GPU_QUERY = (
    "nvidia-smi",
    f"--query-gpu={','.join(OLD_GPU_FIELDS)}",
    "--format=csv,noheader,nounits",
)
PROCESS_QUERY = (
    "nvidia-smi",
    "--query-compute-apps=pid,process_name,used_memory",
    "--format=csv,noheader,nounits",
)
HEADER = ("nvidia-smi",)

_CUDA = re.compile(r"CUDA Version:\s*(\d+)\.(\d+)")
_CAPABILITY = re.compile(r"(\d+)\.(\d+)")


def parse_gpus(output: CommandOutput) -> tuple[Device, ...]:
    """One device per row of :data:`GPU_QUERY` or :data:`OLD_GPU_QUERY`; other lines are skipped.

    Memory is "[N/A]" where the GPU shares the host's memory (DGX Spark).
    """
    fields = OLD_GPU_FIELDS if output.argv == OLD_GPU_QUERY else GPU_FIELDS
    devices = []
    for row, line in _rows(output, len(fields)):
        values = dict(zip(fields, row, strict=True))
        devices.append(
            Device(
                kind="cuda",
                index=values["index"],
                name=values["name"],
                arch=_arch(values.get("compute_cap", "")),
                memory_bytes=_mib(values["memory.total"]),
                used_bytes=_mib(values["memory.used"]),
                evidence=line,
            )
        )
    return tuple(devices)


def parse_processes(output: CommandOutput) -> tuple[DeviceProcess, ...]:
    """One process per row of :data:`PROCESS_QUERY`."""
    return tuple(
        DeviceProcess(pid=int(row[0]), name=row[1], used_bytes=_mib(row[2]), evidence=line)
        for row, line in _rows(output, 3)
    )


def driver_cuda(output: CommandOutput) -> tuple[tuple[int, int], Line] | None:
    """The newest CUDA that the driver serves, from the header of plain ``nvidia-smi``."""
    for number, text in enumerate(output.stdout.splitlines(), start=1):
        match = _CUDA.search(text)
        if match:
            line = Line(source=output.command, line=number, text=text.strip(" |"))
            return (int(match[1]), int(match[2])), line
    return None


def _rows(output: CommandOutput, width: int) -> Iterator[tuple[list[str], Line]]:
    for number, text in enumerate(output.stdout.splitlines(), start=1):
        row = [cell.strip() for cell in next(csv.reader([text], skipinitialspace=True), [])]
        if len(row) == width and row[0].isdecimal():
            yield row, Line(source=output.command, line=number, text=text.strip())


def _arch(capability: str) -> str | None:
    match = _CAPABILITY.fullmatch(capability)
    return f"sm_{match[1]}{match[2]}" if match else None


def _mib(text: str) -> int | None:
    number = text.removesuffix("MiB").strip()
    return int(number) * MIB if number.isdecimal() else None
