"""Shared libraries that the native parts of an environment need and will not find."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hwtune.domain.doctor.profile_fit import Target
from hwtune.domain.doctor.records import Facts, Finding, Line

_OF_THE_NPU = ("torch_npu", "vllm_ascend")
"""Packages whose missing libraries are CANN's."""

_BRINGS = (
    ("libgalaxyhip", "source the DTK's env.sh in the shell that starts the server"),
    ("libamdhip64", "install ROCm of torch's version, or add its lib folder to LD_LIBRARY_PATH"),
    ("libcuda.so", "the NVIDIA driver is not visible here: docker run --gpus all …"),
    ("libhip", "source the environment of ROCm or the DTK"),
    ("libroc", "source the environment of ROCm or the DTK"),
    ("libnuma", "install libnuma1"),
)
"""Library -> what brings it. libgalaxyhip: DTK's HIP runtime, seen in a failed start on gfx936."""


def missing_libraries(facts: Facts) -> Mapping[str, tuple[str, ...]]:
    """Package -> libraries that ``ldd`` did not find for its native parts, each once.

    What packages bring themselves (``torch/lib``, ``nvidia/*/lib``) is left out: it is loaded by
    name before, and ldd does not know that.
    """
    own = set(facts.python.bundled_libraries) if facts.python else set()
    found: dict[str, dict[str, None]] = {}
    for output in facts.libraries:
        for text in output.stdout.splitlines():
            name = text.split()[0] if text.rstrip().endswith("=> not found") else ""
            if name and name not in own:
                found.setdefault(_package(output.argv[-1]), {})[name] = None
    return {package: tuple(names) for package, names in found.items()}


def _package(path: str) -> str:
    """The folder below site-packages; the path itself where there is none."""
    below = path.partition("/site-packages/")[2]
    return below.partition("/")[0].partition(".")[0] or path


def where_missing(facts: Facts, library: str) -> tuple[Line, ...]:
    """The first ``ldd`` line that misses a library."""
    lines = (output.find(f"{library} => not found") for output in facts.libraries)
    return tuple(line for line in lines if line.line is not None)[:1]


def library_findings(facts: Facts, target: Target) -> Iterator[Finding]:
    """One finding per package, with what usually brings the libraries."""
    for package, names in missing_libraries(facts).items():
        npu = package in _OF_THE_NPU
        known = (text for name in names for start, text in _BRINGS if name.startswith(start))
        yield Finding(
            id=f"libraries-{package}",
            topic="environment",
            status="warning" if npu and target.kind != "npu" else "problem",
            text=f"{package} needs {_listed(names)}, not to be found here",
            evidence=where_missing(facts, names[0]),
            advice="source /usr/local/Ascend/ascend-toolkit/set_env.sh (libatb: nnal/atb/set_env.sh)"
            " in the shell that starts the server"
            if npu
            else next(known, "install what brings them, or add the folder to LD_LIBRARY_PATH"),
        )


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more
