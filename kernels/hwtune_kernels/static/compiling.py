"""Compiles a launch for a device that is not here, exactly as Triton would on it."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from hwtune_kernels.static.assembly import (
    Loop,
    Resources,
    amd_resources,
    hot_loop,
    nvidia_resources,
)
from hwtune_kernels.triton_call import Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One device and what is compiled for it."""

    backend: str
    architecture: int | str
    warp_size: int
    stages: int
    """Triton's default of ``num_stages``."""
    stands_for: str = ""
    """Why this is compiled although the device is another."""


TARGETS: dict[str, Target] = {
    "sm_80": Target(backend="cuda", architecture=80, warp_size=32, stages=3),
    "sm_90": Target(backend="cuda", architecture=90, warp_size=32, stages=3),
    "sm_100": Target(backend="cuda", architecture=100, warp_size=32, stages=3),
    "gfx942": Target(backend="hip", architecture="gfx942", warp_size=64, stages=2),
    "gfx90a": Target(backend="hip", architecture="gfx90a", warp_size=64, stages=2),
    "gfx950": Target(backend="hip", architecture="gfx950", warp_size=64, stages=2),
    "gfx936": Target(
        backend="hip",
        architecture="gfx90a",
        warp_size=64,
        stages=2,
        stands_for=(
            "upstream Triton rejects gfx936; gfx90a, also wave64 with a matrix unit, is compiled "
            "instead. On the device the vendor's own Triton compiles."
        ),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What came out of the compiler."""

    resources: Resources
    shared_bytes: int
    num_warps: int
    num_stages: int
    loop: Loop | None


class _Driver:
    """What Triton asks of a driver before it compiles."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0


def compile_launch(launch: Launch, target: Target) -> Compiled:
    """Compiles; the launch's tensors are on the meta device and nothing is run.

    Raises:
        Exception: what Triton or ``ptxas`` raise for a kernel they cannot compile.
    """
    driver.set_active(_Driver(GPUTarget(target.backend, target.architecture, target.warp_size)))
    launch.kernel.device_caches.clear()  # bound per device, and all targets are device 0
    compiled = launch.kernel.warmup(
        *launch.arguments, grid=launch.grid, **launch.constants, **launch.options
    )
    nvidia = target.backend == "cuda"
    listing = compiled.asm["sass" if nvidia else "amdgcn"]
    return Compiled(
        resources=_ptxas(compiled.asm["ptx"]) if nvidia else amd_resources(listing),
        shared_bytes=compiled.metadata.shared,
        num_warps=compiled.metadata.num_warps,
        num_stages=compiled.metadata.num_stages,
        loop=hot_loop(listing),
    )


def _ptxas(ptx: str) -> Resources:
    """Assembles once more, only for the numbers that ``ptxas -v`` prints."""
    target: Any = re.search(r"^\.target\s+(\w+)", ptx, re.MULTILINE)
    architecture: str = target[1]
    new = int(re.sub(r"\D", "", architecture)) >= 90
    folder = Path(triton.__file__).parent / "backends/nvidia/bin"
    program = folder / ("ptxas-blackwell" if new else "ptxas")
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        done = subprocess.run(
            [program, "-v", f"-arch={architecture}", file.name, "-o", "/dev/null"],
            capture_output=True,
            text=True,
            check=False,
        )
    return nvidia_resources(done.stderr)
