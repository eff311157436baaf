"""The traps of torch_npu and vllm-ascend that an environment shows before anything is imported."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hwtune.domain.doctor.engine import release
from hwtune.domain.doctor.npu import GENERATIONS
from hwtune.domain.doctor.profile_fit import Target
from hwtune.domain.doctor.records import Facts, Finding, Line, PythonFacts

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""``0`` keeps torch from importing the entry points of ``torch.backends`` (torch 2.5 and newer)."""

_DEVICE_TYPE = re.compile(r"__device_type__\s*=\s*['\"](\w+)['\"]")
_CANN = ("libhccl", "libascendcl", "libacl_", "libge_runner", "libgraph", "libatb")


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
    missing = [name for name in missing_libraries(facts) if name.startswith(_CANN)]
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
            evidence=(entry, setting, *_where(facts, missing[0])),
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


def missing_libraries(facts: Facts) -> tuple[str, ...]:
    """Shared libraries that no ``ldd`` of the environment's native parts found, each once.

    What packages bring themselves (``torch/lib``, ``nvidia/*/lib``) is left out: it is loaded by
    name before, and ldd does not know that.
    """
    own = set(facts.python.bundled_libraries) if facts.python else set()
    names = (
        text.split()[0]
        for output in facts.libraries
        for text in output.stdout.splitlines()
        if text.rstrip().endswith("=> not found")
    )
    return tuple(dict.fromkeys(name for name in names if name not in own))


def _where(facts: Facts, library: str) -> tuple[Line, ...]:
    lines = (output.find(f"{library} => not found") for output in facts.libraries)
    return tuple(line for line in lines if line.line is not None)[:1]


def library_findings(facts: Facts, target: Target) -> Iterator[Finding]:
    """Missing libraries of anything native, with what usually brings each."""
    missing = missing_libraries(facts)
    cann = [name for name in missing if name.startswith(_CANN)]
    rest = [name for name in missing if not name.startswith(_CANN)]
    if cann:
        yield Finding(
            id="cann-libraries",
            topic="environment",
            status="problem" if target.kind == "npu" else "warning",
            text=f"the CANN libraries are not to be found: {', '.join(cann)}",
            evidence=_where(facts, cann[0]),
            advice="source /usr/local/Ascend/ascend-toolkit/set_env.sh (libatb: nnal/atb/set_env.sh)"
            " in the shell that starts the server",
        )
    for name in rest:
        advice = next((text for start, text in _BRINGS if name.startswith(start)), "")
        yield Finding(
            id=f"library-{name}",
            topic="environment",
            status="problem",
            text=f"{name} is needed by the installed packages and not to be found",
            evidence=_where(facts, name),
            advice=advice or f"install what brings {name}, or add its folder to LD_LIBRARY_PATH",
        )


_BRINGS = (
    ("libgalaxyhip", "source the DTK's env.sh in the shell that starts the server"),
    ("libamdhip64", "install ROCm of torch's version, or add its lib folder to LD_LIBRARY_PATH"),
    ("libcuda.so", "the NVIDIA driver is not visible here: docker run --gpus all …"),
    ("libcudart", "torch brings it: import torch first, or install the CUDA runtime wheel"),
    ("libhip", "source the environment of ROCm or the DTK"),
    ("libroc", "source the environment of ROCm or the DTK"),
    ("libnuma", "install libnuma1"),
)
"""Library -> what brings it. libgalaxyhip: DTK's HIP runtime, seen in a failed start on gfx936."""
