"""vLLM, the fork it is, and whether torch, triton and the rest belong to it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hwtune.domain.doctor.nvidia import driver_cuda
from hwtune.domain.doctor.packages import package_findings
from hwtune.domain.doctor.profile_fit import Target
from hwtune.domain.doctor.records import (
    DeviceKind,
    Distribution,
    Facts,
    Finding,
    Line,
    PythonFacts,
    Status,
)

_FORKS = (
    (re.compile(r"\+.*das"), "Hygon DAS fork (DTK)", "rocm"),
    (re.compile(r"\+.*dtk"), "Hygon DTK build", "rocm"),
    (re.compile(r"\+.*rocm"), "ROCm build", "rocm"),
    (re.compile(r"\+.*cu\d+"), "CUDA build", "cuda"),
    (re.compile(r"\+.*cpu"), "CPU build", "cpu"),
    (re.compile(r"\+.*empty"), "build without kernels, for a platform plugin", "npu"),
    (re.compile(r"\+.*(gaudi|xpu|tpu|musa|metax|maca)"), "build for another accelerator", None),
)
"""Local part of a version -> what it is, and the device it is for. Seen: 0.9.2+das.opt1.dtk25041,
0.18.1+das, 0.11.0+rocm700, 0.10.2+cu129, 0.15.0+cpu, 0.11.0+empty."""

_FIRST_WITH_REGISTRY = (0, 13)
"""vLLM attention/backends/registry.py, since 0.18 v1/attention/backends/registry.py."""

_TORCH_BUILD = re.compile(r"^(?P<name>cuda|hip)\b[^=\n]*=\s*(?P<value>\S.*)$", re.MULTILINE)


def release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``2.10.0.post4+cpu`` -> (2, 10, 0)."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def build_of(version: str, distribution: str) -> tuple[str, str | None]:
    """What kind of build a version of vLLM is, and which device it is for."""
    for pattern, what, kind in _FORKS:
        if pattern.search(version):
            return what, kind
    if distribution.endswith("-cpu"):
        return "CPU build", "cpu"
    if distribution not in ("vllm", "vllm-ascend"):
        return f"distribution {distribution}", None
    return "release build", None


def torch_build(python: PythonFacts) -> tuple[DeviceKind | None, Line | None]:
    """What torch was built for: its ``version.py`` names the CUDA or HIP version, or neither."""
    file = python.file("torch/version.py")
    if file is None:
        return None, None
    built = {
        m["name"]: m["value"].strip("'\" ")
        for m in _TORCH_BUILD.finditer(file.text)
        if m["value"].strip() != "None"
    }
    kind: DeviceKind = "rocm" if "hip" in built else "cuda" if "cuda" in built else "cpu"
    text = ", ".join(f"{name} = {value}" for name, value in built.items()) or "no cuda, no hip"
    return kind, Line(source=file.path, line=None, text=text)


def engine_findings(facts: Facts, target: Target) -> Iterator[Finding]:
    """Everything about the installed engine."""
    python = facts.python
    if python is None:
        yield Finding(
            id="python",
            topic="engine",
            status="problem",
            text=f"the Python environment could not be read: {facts.python_failure}",
            advice="name the interpreter that has vLLM with --python",
        )
        return
    yield from _vllm(python)
    yield from _for_device(python, target)
    yield from _torch(python)
    yield from _driver(facts, python)
    yield from _triton(python, target)
    yield from package_findings(python)


def _vllm(python: PythonFacts) -> Iterator[Finding]:
    owners = python.owners("vllm")
    if not owners:
        yield Finding(
            id="vllm",
            topic="engine",
            status="problem",
            text=f"vLLM is not installed for {python.executable}",
            evidence=(Line(source=python.executable, line=None, text=f"Python {python.version}"),),
            advice="install vLLM there, or name the Python that has it with --python",
        )
        return
    if len(owners) > 1:
        yield _twice("vllm", owners, "problem")
    owner = owners[0]
    what, _ = build_of(owner.version, owner.name)
    yield Finding(
        id="vllm",
        topic="engine",
        status="ok",
        text=f"vLLM {owner.version} ({what})",
        evidence=(_line(owner),),
    )
    yield from _half_upgraded(python, owner)
    if (0,) < release(owner.version) < _FIRST_WITH_REGISTRY:
        yield Finding(
            id="vllm-old",
            topic="engine",
            status="warning",
            text=f"vLLM {owner.version} has no registry of attention backends: hwtune's plugin "
            "refuses there, and serves no candidate",
            evidence=(_line(owner),),
            advice="derive-page and verify-markers work; serve needs 0.13 or newer",
        )


def _half_upgraded(python: PythonFacts, owner: Distribution) -> Iterator[Finding]:
    file = python.file("vllm/_version.py")
    if file is None:
        return
    match = re.search(
        r"""^(?:__)?version(?:__)?\b[^'"\n]*=[^'"\n]*['"]([^'"]+)""", file.text, re.MULTILINE
    )
    if match and release(match[1])[:3] != release(owner.version)[:3]:
        yield Finding(
            id="vllm-half-upgraded",
            topic="engine",
            status="problem",
            text=f"the package vllm says it is {match[1]}, its metadata say {owner.version}",
            evidence=(Line(source=file.path, line=None, text=match[0]), _line(owner)),
            advice="an upgrade left files of two versions: uninstall vLLM, remove what is left, "
            "install it again",
        )


def _twice(package: str, owners: tuple[Distribution, ...], status: Status) -> Finding:
    names = " and ".join(f"{owner.name} {owner.version}" for owner in owners)
    return Finding(
        id=f"two-{package}",
        topic="engine",
        status=status,
        text=f"{names} both bring the package {package}: the one installed last wrote over the "
        "other's files",
        evidence=tuple(_line(owner) for owner in owners),
        advice="uninstall all of them, then install the one you want",
    )


def _for_device(python: PythonFacts, target: Target) -> Iterator[Finding]:
    """A build for another device starts, and then serves on the CPU or not at all."""
    owner = next(iter(python.owners("vllm")), None)
    if owner is None or target.kind is None:
        return
    what, kind = build_of(owner.version, owner.name)
    if target.kind == "npu":
        yield from _ascend_plugin(python)
        return
    torch_kind, line = torch_build(python)
    if kind is None and owner.name == "vllm":
        kind = torch_kind
    if kind is not None and kind != target.kind:
        yield Finding(
            id="vllm-for-another-device",
            topic="engine",
            status="problem",
            text=f"vLLM {owner.version} ({what}) is for {kind}; the server is to run on {target.kind}",
            evidence=(_line(owner), *((line,) if line else ())),
            advice=f"install the vLLM that your vendor builds for {target.kind}",
        )
    if torch_kind is not None and torch_kind != target.kind and line is not None:
        torch = python.distribution("torch")
        yield Finding(
            id="torch-for-another-device",
            topic="engine",
            status="problem",
            text=f"torch {torch.version if torch else ''} is built for {torch_kind}; the "
            f"server is to run on {target.kind}",
            evidence=(line,),
            advice="pip replaced the vendor's torch with PyPI's: install the vendor's again, and "
            "later packages with --no-deps",
        )


def _ascend_plugin(python: PythonFacts) -> Iterator[Finding]:
    for name in ("vllm-ascend", "torch-npu"):
        if python.distribution(name) is None:
            yield Finding(
                id=f"no-{name}",
                topic="engine",
                status="problem",
                text=f"{name} is not installed: vLLM does not know the NPU without it",
                evidence=(Line(source=python.executable, line=None, text="no such distribution"),),
                advice="use the vllm-ascend image of your vLLM version, or install it",
            )


def _torch(python: PythonFacts) -> Iterator[Finding]:
    torch = python.distribution("torch")
    if torch is None:
        if python.owners("vllm"):
            yield Finding(
                id="torch",
                topic="engine",
                status="problem",
                text="torch is not installed beside vLLM",
                evidence=(Line(source=python.executable, line=None, text="no distribution"),),
                advice="install the torch that this vLLM pins",
            )
        return
    kind, line = torch_build(python)
    yield Finding(
        id="torch",
        topic="engine",
        status="ok",
        text=f"torch {torch.version} (built for {kind or 'an unknown device'})",
        evidence=(_line(torch), *((line,) if line else ())),
    )


def _driver(facts: Facts, python: PythonFacts) -> Iterator[Finding]:
    """A driver serves CUDA up to its own major version; newer minor ones are compatible."""
    file, driver = python.file("torch/version.py"), driver_cuda(facts.output("nvidia-header"))
    match = file and re.search(r"^cuda\b[^=\n]*=\s*'(\d+)\.(\d+)", file.text, re.MULTILINE)
    if not match or file is None or driver is None:
        return
    (major, minor), line = driver
    fits = int(match[1]) <= major
    yield Finding(
        id="cuda-driver",
        topic="engine",
        status="ok" if fits else "problem",
        text=f"torch is built for CUDA {match[1]}.{match[2]}, the driver serves {major}.{minor}",
        evidence=(Line(source=file.path, line=None, text=match[0]), line),
        advice="" if fits else f"update the driver, or install a torch for CUDA {major}",
    )


def _triton(python: PythonFacts, target: Target) -> Iterator[Finding]:
    owners = python.owners("triton")
    if len(owners) > 1:
        yield _twice("triton", owners, "problem")
    elif owners:
        yield Finding(
            id="triton",
            topic="engine",
            status="ok",
            text=f"triton: {owners[0].name} {owners[0].version}",
            evidence=(_line(owners[0]),),
        )
    elif target.kind in ("cuda", "rocm") and python.owners("vllm"):
        yield Finding(
            id="triton",
            topic="engine",
            status="problem",
            text="triton is not installed: neither vLLM's Triton backend nor hwtune's kernels run",
            evidence=(Line(source=python.executable, line=None, text="no package triton"),),
            advice="install the triton that your torch names as its requirement",
        )


def _line(distribution: Distribution) -> Line:
    return Line(
        source=distribution.location,
        line=None,
        text=f"{distribution.name} {distribution.version}",
    )
