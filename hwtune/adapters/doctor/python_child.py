"""Describes the Python that runs it, as one line of JSON, without importing what it describes.

A program of its own: it runs under the interpreter that is asked about, which may be older than
hwtune's, may not have hwtune, and must not import torch or vLLM. Standard library only.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # This file's folder: its neighbours must not be importable by plain names.

import contextlib
import importlib
import importlib.util
import json
import platform
import re
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

MARK = "hwtune-doctor: "
PACKAGES = ("vllm", "vllm_ascend", "torch", "torch_npu", "triton")
GROUPS = (
    "vllm.general_plugins",
    "vllm.platform_plugins",
    "vllm.io_processor_plugins",
    "vllm.stat_logger_plugins",
    "vllm.endpoint_plugins",
    "torch.backends",
)
FILES = ("vllm/_version.py", "vllm_ascend/_build_info.py", "torch/version.py")
NATIVE = (
    "torch/lib/libtorch_python.so",
    "torch/lib/libtorch_cuda.so",
    "torch/lib/libtorch_hip.so",
    "torch_npu/lib/libtorch_npu.so",
    "torch_npu/_C*.so",
    "vllm/_C*.so",
    "vllm_ascend/vllm_ascend_C*.so",
)
BUNDLED = (
    "torch/lib/*.so*",
    "torch.libs/*.so*",
    "nvidia/*/lib/*.so*",
    "torch_npu/lib/*.so*",
    "vllm_ascend/lib/*.so*",
)
_OF_INTEREST = re.compile(r"vllm|torch|triton|hwtune|numpy|transformers|xgrammar|ray$")
_LARGEST = 20000


def normal(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def package_folder(package: str) -> Path | None:
    """Where a package would be imported from; finding a top-level package imports nothing."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent


def brings(distribution: metadata.Distribution, name: str) -> list[str]:
    """Which packages of interest its files hold."""
    files = {str(file) for file in distribution.files or ()}
    top = (distribution.read_text("top_level.txt") or "").split()
    return [
        package
        for package in PACKAGES
        if package + "/__init__.py" in files
        or (package in top and package == name.replace("-", "_"))
    ]


def requirement_class() -> Callable[[str], Any] | None:
    """The environment's own parser of requirements, or the one inside its pip."""
    for module in ("packaging.requirements", "pip._vendor.packaging.requirements"):
        with contextlib.suppress(ImportError, AttributeError):
            kind: Callable[[str], Any] = importlib.import_module(module).Requirement
            return kind
    return None


def requires(distribution: metadata.Distribution, versions: dict[str, str]) -> list[dict[str, Any]]:
    """Pins on packages of interest, each compared with what is installed."""
    kind = requirement_class()
    found = []
    for text in distribution.requires or ():
        name = normal(re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0])
        if not _OF_INTEREST.search(name):
            continue
        satisfied = None
        if kind is not None:
            try:
                parsed = kind(text)
                if parsed.marker is not None and not parsed.marker.evaluate({"extra": ""}):
                    continue
                if name in versions:
                    satisfied = parsed.specifier.contains(versions[name], prereleases=True)
            except ValueError:  # InvalidRequirement, InvalidVersion, UndefinedEnvironmentName
                satisfied = None
        shown = text.partition(";")[0].strip()
        found.append(
            {"text": shown, "name": name, "installed": versions.get(name), "satisfied": satisfied}
        )
    return found


def place(distribution: metadata.Distribution) -> str:
    """The folder of its metadata."""
    return str(getattr(distribution, "_path", ""))


def by_name() -> tuple[dict[str, metadata.Distribution], list[dict[str, str]]]:
    """The distributions whose metadata can be read, and why the others cannot."""
    found: dict[str, metadata.Distribution] = {}
    broken = []
    for distribution in metadata.distributions():
        folder = Path(place(distribution)).name.lower()
        if folder.startswith("~"):
            broken.append({"path": place(distribution), "reason": "renamed by pip to remove it"})
            continue
        reason = "no name or no version in it"
        try:
            name, version = distribution.metadata["Name"], distribution.version
            list(distribution.entry_points)
        except Exception as error:  # noqa: BLE001 - whatever damage makes of it
            name, version, reason = None, None, f"{type(error).__name__}: {error}"
        if name and version:
            found.setdefault(normal(name), distribution)  # the first on sys.path is imported
        elif _OF_INTEREST.search(folder.partition("-")[0]):
            broken.append({"path": place(distribution), "reason": reason})
    return found, broken


def described(named: dict[str, metadata.Distribution]) -> list[dict[str, Any]]:
    """The distributions of interest."""
    versions = {name: distribution.version for name, distribution in named.items()}
    return [
        {
            "name": name,
            "version": distribution.version,
            "location": place(distribution),
            "tags": re.findall(r"^Tag: (\S+)", distribution.read_text("WHEEL") or "", re.MULTILINE),
            "packages": brings(distribution, name),
            "requires": requires(distribution, versions)
            if re.search(r"vllm|torch|triton", name)
            else [],
        }
        for name, distribution in sorted(named.items())
        if _OF_INTEREST.search(name)
    ]


def plugins(named: dict[str, metadata.Distribution]) -> list[dict[str, str]]:
    """Entry points that vLLM or torch loads by itself."""
    return [
        {"group": entry.group, "name": entry.name, "value": entry.value, "distribution": name}
        for name, distribution in sorted(named.items())
        for entry in distribution.entry_points
        if entry.group in GROUPS
    ]


def read(path: Path) -> str:
    """The beginning of a small text file."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(_LARGEST)


def without_metadata(
    packages: list[dict[str, Any]],
    folders: dict[str, Path],
) -> list[dict[str, Any]]:
    """Packages on the path that no distribution brings: a checkout, an editable install."""
    owned = {package for item in packages for package in item["packages"]}
    extra = []
    for package in ("vllm", "torch", "vllm_ascend", "torch_npu"):
        if package not in folders or package in owned:
            continue
        named = [item for item in packages if item["name"] == normal(package)]
        if named:
            named[0]["packages"].append(package)
            continue
        path = folders[package] / "_version.py"
        text = read(path) if path.exists() else ""
        match = re.search(r"""version\b[^'"\n]*=[^'"\n]*['"]([^'"]+)""", text)
        extra.append(
            {
                "name": normal(package),
                "version": match.group(1) if match else "0",
                "location": str(folders[package]),
                "tags": [],
                "packages": [package],
                "requires": [],
            }
        )
    return extra


def describe() -> dict[str, Any]:
    """Everything, as plain values."""
    named, broken = by_name()
    packages = described(named)
    found = {package: package_folder(package) for package in PACKAGES}
    folders = {package: folder for package, folder in found.items() if folder}
    packages += without_metadata(packages, folders)
    roots = sorted({folder.parent for folder in folders.values()})
    files = []
    for name in FILES:
        package, _, rest = name.partition("/")
        path = folders.get(package, Path()) / rest
        if package in folders and path.exists():
            files.append({"name": name, "path": str(path), "text": read(path)})

    def matches(patterns: tuple[str, ...]) -> list[Path]:
        return [p for root in roots for pattern in patterns for p in sorted(root.glob(pattern))]

    candidates = [Path.cwd() / package / "__init__.py" for package in PACKAGES]
    return {
        "executable": sys.executable,
        "version": platform.python_version(),
        "machine": platform.machine(),
        "distributions": packages,
        "broken": broken,
        "plugins": plugins(named),
        "files": files,
        "bundled_libraries": sorted({path.name for path in matches(BUNDLED)}),
        "native": [str(path) for path in matches(NATIVE)],
        "shadowing": [str(p.parent) for p in candidates if p.exists()],
    }


if __name__ == "__main__":
    print(MARK + json.dumps(describe()))  # noqa: T201
