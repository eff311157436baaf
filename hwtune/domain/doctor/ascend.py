"""The traps of torch_npu and vllm-ascend that an environment shows before anything is imported."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hwtune.domain.doctor.engine import release
from hwtune.domain.doctor.libraries import missing_libraries, where_missing
from hwtune.domain.doctor.npu import GENERATIONS
from hwtune.domain.doctor.profile_fit import Target
from hwtune.domain.doctor.records import Facts, Finding, Line, PythonFacts

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""``0`` keeps torch from importing the entry points of ``torch.backends`` (torch 2.5 and newer)."""

_DEVICE_TYPE = re.compile(r"__device_type__\s*=\s*['\"](\w+)['\"]")


def ascend_findings(facts: Facts, target: Target) -> Iterator[Finding]:
    """Pairs of versions, the build's device type, and what autoloading does."""
    python = facts.python
    if python is None:
        return
    yield from _torch_pair(python)
    yield from _vllm_pair(python)
    yield from _device_type(python, target)
    yield from _autoload(facts, python)


def _torch_pair(python: PythonFacts) -> Iterator[Finding]:
    """torch_npu is compiled against one torch: 2.10.0.post4 against 2.10.0."""
    npu, torch = python.distribution("torch-npu"), python.distribution("torch")
    if npu is None or torch is None:
        return
    fits = release(npu.version)[:3] == release(torch.version)[:3]
    yield Finding(
        id="torch-npu-pair",
        topic="engine",
        status="ok" if fits else "problem",
        text=f"torch_npu {npu.version} with torch {torch.version}"
        + ("" if fits else ": torch_npu is compiled against one release of torch"),
        evidence=(
            Line(source=npu.location, line=None, text=f"torch-npu {npu.version}"),
            Line(source=torch.location, line=None, text=f"torch {torch.version}"),
        ),
        advice="" if fits else f"install torch {'.'.join(map(str, release(npu.version)[:3]))}",
    )


def _vllm_pair(python: PythonFacts) -> Iterator[Finding]:
    """vllm-ascend patches one vLLM: the release of the same number."""
    ascend = python.distribution("vllm-ascend")
    vllm = next(iter(python.owners("vllm")), None)
    if ascend is None or vllm is None:
        return
    fits = release(ascend.version)[:3] == release(vllm.version)[:3]
    yield Finding(
        id="vllm-ascend-pair",
        topic="engine",
        status="ok" if fits else "problem",
        text=f"vllm-ascend {ascend.version} with vLLM {vllm.version}"
        + ("" if fits else ": it patches the vLLM of its own number and no other"),
        evidence=(
            Line(source=ascend.location, line=None, text=f"vllm-ascend {ascend.version}"),
            Line(source=vllm.location, line=None, text=f"{vllm.name} {vllm.version}"),
        ),
        advice="" if fits else "install the pair of one release",
    )


def _device_type(python: PythonFacts, target: Target) -> Iterator[Finding]:
    """vllm-ascend asserts at start that its build is for the chip it finds (utils.py)."""
    file = python.file("vllm_ascend/_build_info.py")
    if python.distribution("vllm-ascend") is None:
        return
    match = _DEVICE_TYPE.search(file.text) if file else None
    if match is None or file is None:
        yield Finding(
            id="ascend-build",
            topic="engine",
            status="problem",
            text="vllm_ascend/_build_info.py is missing or names no device type: importing "
            "vllm_ascend.utils fails",
            evidence=(Line(source="vllm_ascend", line=None, text="no __device_type__"),),
            advice="install a built wheel, or build with SOC_VERSION set (e.g. ascend910b1)",
        )
        return
    arch = target.device.arch if target.device and target.device.kind == "npu" else None
    wanted = GENERATIONS.get(arch or "")
    line = Line(source=file.path, line=None, text=match[0])
    if wanted is None:
        text = f"vllm-ascend is built for {match[1]}; no NPU with a known generation to compare"
        yield Finding(
            id="ascend-build", topic="engine", status="unknown", text=text, evidence=(line,)
        )
        return
    fits = wanted == match[1]
    yield Finding(
        id="ascend-build",
        topic="engine",
        status="ok" if fits else "problem",
        text=f"vllm-ascend is built for {match[1]}, the NPU is {arch} ({wanted})",
        evidence=(line, *((target.device.evidence,) if target.device else ())),
        advice="" if fits else f"build or install vllm-ascend for {wanted}: it refuses to start",
    )


def _autoload(facts: Facts, python: PythonFacts) -> Iterator[Finding]:
    """An installed torch_npu is imported by ``import torch`` itself, wherever that happens."""
    entries = [p for p in python.plugins if p.group == "torch.backends" and p.name == "torch_npu"]
    if not entries:
        return
    off = facts.environ.get(AUTOLOAD) == "0"
    missing = missing_libraries(facts).get("torch_npu", ())
    setting = Line(
        source="environment", line=None, text=f"{AUTOLOAD}={facts.environ.get(AUTOLOAD, '(unset)')}"
    )
    entry = Line(source="entry point torch.backends", line=None, text=entries[0].value)
    if missing and not off:
        yield Finding(
            id="torch-autoload",
            topic="environment",
            status="problem",
            text="`import torch` itself fails here: it autoloads torch_npu, which lacks "
            f"{missing[0]}",
            evidence=(entry, setting, *where_missing(facts, missing[0])),
            advice="source the toolkit's set_env.sh (/usr/local/Ascend/ascend-toolkit/set_env.sh); "
            f"where there is no NPU, export {AUTOLOAD}=0 or uninstall torch-npu",
        )
    else:
        reason = "is off" if off else "is on and its libraries are found"
        yield Finding(
            id="torch-autoload",
            topic="environment",
            status="ok",
            text=f"autoloading of torch_npu {reason}",
            evidence=(entry, setting),
        )
