"""What ``npu-smi info`` prints, read."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hwtune.domain.doctor.records import MIB, CommandOutput, Device, DeviceProcess, Line

INFO = ("npu-smi", "info")

_USAGE = re.compile(r"(\d+)\s*/\s*(\d+)")
_BUS = re.compile(r"^[0-9A-Fa-fx]{4}:[0-9A-Fa-fx]{2}:", re.ASCII)
_CHIP_OF_910 = re.compile(r"910(B|_93|C)", re.IGNORECASE)

GENERATIONS = {"910B": "A2", "910C": "A3", "310P": "_310P", "950": "A5"}
"""Chip -> the name that vllm-ascend's build carries (``_build_info.__device_type__``)."""


def parse_npus(output: CommandOutput) -> tuple[Device, ...]:
    """One device per chip: two lines each, the first with the name, the second with the bus.

    Atlas A2 calls its chips 910B1 to 910B4, 310P cards 310P1 to 310P3. Atlas A3 (910C) calls
    them only ``Ascend910`` and has a ``Phy-ID`` column, because two chips share a card.
    """
    two_chips = "Phy-ID" in output.stdout
    devices = []
    card: tuple[list[str], Line] | None = None
    for cells, line in _cells(output):
        if len(cells) != 3:
            continue
        first = cells[0].split()
        if _BUS.match(cells[1]):
            if card is not None:
                devices.append(_device(card, first, cells[2], two_chips))
            card = None
        elif len(first) == 2 and first[0].isdecimal():
            card = cells, line
    return tuple(devices)


def _device(card: tuple[list[str], Line], chip: list[str], usage: str, two_chips: bool) -> Device:
    cells, line = card
    number, name = cells[0].split()
    used, total = _memory(usage)
    return Device(
        kind="npu",
        index=f"{number}/{chip[0]}",
        name=name,
        arch=_arch(name, two_chips),
        memory_bytes=total,
        used_bytes=used,
        healthy=cells[1] == "OK",
        evidence=line,
    )


def _arch(name: str, two_chips: bool) -> str | None:
    if name.startswith("310P"):
        return "310P"
    match = _CHIP_OF_910.search(name)
    if match:
        return "910B" if match[1].upper() == "B" else "910C"
    if name.lower().startswith(("950", "ascend950")):
        return "950"
    return "910C" if name == "Ascend910" and two_chips else None


def _memory(usage: str) -> tuple[int | None, int | None]:
    """Used and total: the last ``a / b`` is HBM where there is HBM, device memory elsewhere."""
    pairs = _USAGE.findall(usage)
    if not pairs:
        return None, None
    used, total = pairs[-1]
    return int(used) * MIB, int(total) * MIB


def parse_processes(output: CommandOutput) -> tuple[DeviceProcess, ...]:
    """The rows under ``Process id``; newer tools add the process id inside the container."""
    found = []
    below_header = False
    for cells, line in _cells(output):
        if len(cells) > 1 and cells[1] == "Process id":
            below_header = True
        elif below_header and len(cells) >= 4 and cells[1].isdecimal():
            used = int(cells[3]) * MIB if cells[3].isdecimal() else None
            found.append(
                DeviceProcess(pid=int(cells[1]), name=cells[2], used_bytes=used, evidence=line)
            )
    return tuple(found)


def _cells(output: CommandOutput) -> Iterator[tuple[list[str], Line]]:
    for number, text in enumerate(output.stdout.splitlines(), start=1):
        if text.lstrip().startswith("|"):
            cells = [cell.strip() for cell in text.strip().strip("|").split("|")]
            yield cells, Line(source=output.command, line=number, text=" | ".join(cells))
