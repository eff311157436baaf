"""Records what a server is started in, so that two arms can be compared afterwards."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from hwtune.domain.environment import ServerEnvironment, relevant_variables

_DEVICE_TOOLS = (
    ("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"),
    ("hy-smi", "--showproductname"),
    ("rocm-smi", "--showproductname"),
    ("npu-smi", "info", "-l"),
)
"""What names the accelerators; the first tool that is installed is asked. Of these only the
absence of all has been seen by a test: none has run here beside a device."""
_TIMEOUT_S = 5.0
_MAX_CHARS = 4_000


def surroundings(variables: Mapping[str, str]) -> ServerEnvironment:
    """Packages of this Python, the variables given, and the machine.

    Args:
        variables: the environment that the server gets.
    """
    return ServerEnvironment(
        packages=_packages(), variables=relevant_variables(variables), machine=_machine()
    )


def _packages() -> dict[str, str]:
    found: dict[str, str] = {}
    for item in importlib.metadata.distributions():
        try:
            name, version = item.name, item.version
        except (OSError, KeyError, ValueError):
            continue  # the metadata of a broken installation
        if name and version:
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), version)
    return dict(sorted(found.items()))


def _machine() -> dict[str, str]:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "host": platform.node(),
        "cpu": cpu_name(),
        "cpus": str(cpus),
        "devices": _devices(),
    }


def cpu_name() -> str:
    """The processor's own name, or at least its architecture."""
    text = _cpuinfo()
    if not text:
        return platform.processor() or platform.machine()
    match = re.search(r"^(?:model name|Model|Processor)\s*: (.*)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.machine()


def cpu_features() -> frozenset[str]:
    """The processor's instruction sets, e.g. ``avx512_bf16``; empty where the system hides them."""
    match = re.search(r"^(?:flags|Features)\s*: (.*)$", _cpuinfo(), re.MULTILINE)
    return frozenset(match[1].split()) if match else frozenset()


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _devices() -> str:
    """What the accelerator's own tool prints, or nothing."""
    for name, *arguments in _DEVICE_TOOLS:
        path = shutil.which(name)
        if path is None:
            continue
        try:
            done = subprocess.run(
                [path, *arguments], capture_output=True, timeout=_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            text = done.stdout.decode("utf-8", "replace")
            return "; ".join(" ".join(line.split()) for line in text.split("\n") if line.strip())[
                :_MAX_CHARS
            ]
    return ""
