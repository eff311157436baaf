"""Limits, room and memory of this machine or container."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import tempfile
import time
from pathlib import Path

from hwtune.adapters.doctor.processes import ProcessTable, read_processes
from hwtune.domain.doctor.records import Limit, MachineFacts, SharedFile, Space

_SHM = Path("/dev/shm")
_CGROUP = Path("/sys/fs/cgroup")
_LIMITS = {
    "open files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
    "address space": resource.RLIMIT_AS,
    "locked memory": resource.RLIMIT_MEMLOCK,
}
_DEVICE_FILES = ("nvidia*", "kfd", "dri/renderD*", "davinci*", "accel/accel*")
_NO_CGROUP_LIMIT = 2**60
"""cgroup v1 writes "no limit" as a number close to 2**63."""


def read_machine(port: int) -> MachineFacts:
    """Everything that can be read without a command."""
    memory = _meminfo()
    table = read_processes(port)
    files = sorted(p for name in _DEVICE_FILES for p in Path("/dev").glob(name))
    return MachineFacts(
        cpus=len(os.sched_getaffinity(0)),
        memory_total_bytes=memory.get("MemTotal"),
        memory_available_bytes=memory.get("MemAvailable"),
        cgroup_memory_bytes=_cgroup_memory(),
        cgroup_memory_used_bytes=_number("memory.current", "memory/memory.usage_in_bytes"),
        cgroup_cpus=_cgroup_cpus(),
        container=_container(),
        spaces=tuple(_space(purpose, path) for purpose, path in _places().items()),
        limits=tuple(_limit(name, kind) for name, kind in _LIMITS.items()),
        processes=table.processes,
        shared_files=_shared_files(table),
        hidden_processes=table.hidden,
        listening=table.listening,
        device_files=tuple(map(str, files)),
        forbidden_files=tuple(str(p) for p in files if not os.access(p, os.R_OK | os.W_OK)),
    )


def _meminfo() -> dict[str, int]:
    """Field of ``/proc/meminfo`` -> bytes."""
    found = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            key, _, value = line.partition(":")
            words = value.split()
            if words and words[0].isdigit():
                found[key] = int(words[0]) * (1024 if words[-1] == "kB" else 1)
    return found


def _number(version2: str, version1: str) -> int | None:
    """A number of the control group, in either version's file; None when it says no limit."""
    for name in (version2, version1):
        with contextlib.suppress(OSError):
            text = (_CGROUP / name).read_text(encoding="ascii").strip()
            return int(text) if text.isdigit() else None
    return None


def _cgroup_memory() -> int | None:
    limit = _number("memory.max", "memory/memory.limit_in_bytes")
    return None if limit is None or limit > _NO_CGROUP_LIMIT else limit


def _cgroup_cpus() -> float | None:
    with contextlib.suppress(OSError, ValueError):
        quota, period = (_CGROUP / "cpu.max").read_text(encoding="ascii").split()
        return None if quota == "max" else int(quota) / int(period)
    quota_us = _number("cpu.max", "cpu/cpu.cfs_quota_us")
    period_us = _number("cpu.max", "cpu/cpu.cfs_period_us")
    return quota_us / period_us if quota_us and period_us else None


def _container() -> str | None:
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if Path("/run/.containerenv").exists():
        return "podman"
    return "docker" if Path("/.dockerenv").exists() else None


def _places() -> dict[str, Path]:
    """What has to have room, and where it is."""
    caches = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    hub = Path(os.environ.get("HF_HOME", caches / "huggingface"))
    return {
        "shared memory": _SHM,
        "run directory": Path.cwd(),
        "temporary files": Path(tempfile.gettempdir()),
        "model cache": Path(os.environ.get("HF_HUB_CACHE", hub / "hub")),
        "compile cache": Path(os.environ.get("VLLM_CACHE_ROOT", caches / "vllm")),
    }


def _space(purpose: str, path: Path) -> Space:
    existing = next((p for p in (path, *path.parents) if p.exists()), Path("/"))
    try:
        usage = shutil.disk_usage(existing)
    except OSError as error:
        failure = error.strerror or "unreadable"
        return Space(
            purpose=purpose,
            path=str(path),
            total_bytes=None,
            free_bytes=None,
            writable=False,
            failure=failure,
        )
    return Space(
        purpose=purpose,
        path=str(path),
        total_bytes=usage.total,
        free_bytes=usage.free,
        writable=os.access(existing, os.W_OK),
    )


def _limit(name: str, kind: int) -> Limit:
    soft, _ = resource.getrlimit(kind)
    return Limit(name=name, soft=None if soft == resource.RLIM_INFINITY else soft)


def _shared_files(table: ProcessTable) -> tuple[SharedFile, ...]:
    files = []
    with contextlib.suppress(OSError):
        for path in _SHM.iterdir():
            with contextlib.suppress(OSError):
                stat = path.stat()
                mapped = None if table.open_shared is None else str(path) in table.open_shared
                files.append(
                    SharedFile(
                        path=str(path),
                        size_bytes=stat.st_blocks * 512,
                        age_s=max(0.0, time.time() - stat.st_mtime),
                        mapped=mapped,
                    )
                )
    return tuple(files)
