"""What ``rocm-smi``, ``hy-smi``, ``amd-smi`` and ``rocminfo`` print, read.

Hygon's ``hy-smi`` is a descendant of ``rocm-smi`` and takes the same options; where the words
differ (``vram Total Memory (MiB)`` for ``VRAM Total Memory (B)``) both are known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from hwtune.domain.doctor.records import MIB, CommandOutput, Device, DeviceProcess, Line

SMI_OPTIONS = ("--showproductname", "--showmeminfo", "vram", "--json")
PIDS_OPTIONS = ("--showpids",)
AMD_SMI = ("amd-smi", "static", "--asic", "--vram")
ROCMINFO = ("rocminfo",)

_GFX = re.compile(r"gfx[0-9a-f]{3,5}")
_PID_ROW = re.compile(r"^\s*(?P<pid>\d+)\s+(?P<name>\S.*?)\s+(?P<gpus>\d+)\s+(?P<used>\d+)\s+\d+\s")
_AGENT_FIELD = re.compile(r"^  (?P<key>[A-Z][\w .]*?):\s+(?P<value>\S.*?)\s*$")


def parse_smi(output: CommandOutput) -> tuple[Device, ...]:
    """One device per ``cardN`` of the JSON; anything printed before or after it is ignored."""
    return tuple(_smi_device(output, card, values) for card, values in _cards(output.stdout))


def _cards(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    start = text.find("{")
    if start < 0:
        return
    try:
        data, _ = json.JSONDecoder().raw_decode(text[start:])
    except ValueError:
        return
    for key, values in data.items():
        if key.startswith("card") and key[4:].isdecimal() and isinstance(values, dict):
            yield key, values


def _smi_device(output: CommandOutput, card: str, values: Mapping[str, Any]) -> Device:
    known = {key.lower(): str(value) for key, value in values.items()}
    name = known.get("card series") or known.get("device name") or known.get("card model") or card
    gfx = _GFX.search(known.get("gfx version", ""))
    text = ", ".join(f"{key}: {value}" for key, value in values.items() if _telling(key))
    return Device(
        kind="rocm",
        index=card.removeprefix("card"),
        name=name,
        arch=gfx[0] if gfx else None,
        memory_bytes=_amount(known, "vram total memory"),
        used_bytes=_amount(known, "vram total used memory"),
        evidence=Line(source=output.command, line=None, text=f"{card}: {text}"),
    )


def _telling(key: str) -> bool:
    return key.lower().startswith(("card series", "device name", "gfx version", "vram"))


def _amount(values: Mapping[str, str], key: str) -> int | None:
    for unit, size in (("(b)", 1), ("(mib)", MIB)):
        text = values.get(f"{key} {unit}", "")
        if text.isdecimal():
            return int(text) * size
    return None


def parse_kfd_processes(output: CommandOutput) -> tuple[DeviceProcess, ...]:
    """Rows of ``rocm-smi --showpids``.

    A process with 0 GPUs only opened ``/dev/kfd``, as ``rocm-smi`` itself does on MI300
    (ROCm issue 4411), and is left out.
    """
    found = []
    for number, text in enumerate(output.stdout.splitlines(), start=1):
        match = _PID_ROW.match(text + " ")
        if match is None or match["gpus"] == "0":
            continue
        line = Line(source=output.command, line=number, text=text.strip())
        found.append(
            DeviceProcess(
                pid=int(match["pid"]),
                name=match["name"],
                used_bytes=int(match["used"]),
                evidence=line,
            )
        )
    return tuple(found)


def parse_rocminfo(output: CommandOutput) -> tuple[Device, ...]:
    """The GPU agents; the CPU is an agent too and is left out."""
    devices: list[Device] = []
    agent: dict[str, tuple[str, Line]] = {}
    for number, text in enumerate([*output.stdout.splitlines(), "Agent end"], start=1):
        if text.startswith("Agent "):
            devices.extend(_agent_device(agent, len(devices)))
            agent = {}
            continue
        match = _AGENT_FIELD.match(text)
        if match:
            line = Line(source=output.command, line=number, text=text.strip())
            agent.setdefault(match["key"], (match["value"], line))
    return tuple(devices)


def _agent_device(agent: Mapping[str, tuple[str, Line]], index: int) -> Iterator[Device]:
    name, line = agent.get("Name", ("", Line(source="rocminfo", line=None, text="")))
    if agent.get("Device Type", ("",))[0] != "GPU":
        return
    gfx = _GFX.match(name)
    yield Device(
        kind="rocm",
        index=str(index),
        name=agent.get("Marketing Name", (name, line))[0],
        arch=gfx[0] if gfx else None,
        memory_bytes=None,
        used_bytes=None,
        evidence=line,
    )


def parse_amd_smi(output: CommandOutput) -> tuple[Device, ...]:
    """The ``GPU: N`` blocks of ``amd-smi static``."""
    devices: list[Device] = []
    block: dict[str, tuple[str, Line]] = {}
    for number, text in enumerate([*output.stdout.splitlines(), "GPU: end"], start=1):
        key, _, value = (part.strip() for part in text.partition(":"))
        if text.startswith("GPU:"):
            devices.extend(_amd_device(block))
            block = {}
        line = Line(source=output.command, line=number, text=text.strip())
        block.setdefault(key, (value, line))
    return tuple(devices)


def _amd_device(block: Mapping[str, tuple[str, Line]]) -> Iterator[Device]:
    if "MARKET_NAME" not in block or "GPU" not in block:
        return
    name, line = block["MARKET_NAME"]
    arch, where = block.get("TARGET_GRAPHICS_VERSION", ("", line))
    gfx = _GFX.fullmatch(arch)
    size = block.get("SIZE", ("",))[0].removesuffix("MB").strip()
    yield Device(
        kind="rocm",
        index=block["GPU"][0],
        name=name,
        arch=gfx[0] if gfx else None,
        memory_bytes=int(size) * MIB if size.isdecimal() else None,
        used_bytes=None,
        evidence=where if gfx else line,
    )
