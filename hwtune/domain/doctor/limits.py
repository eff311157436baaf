"""Room and limits: disk, shared memory, memory, files, processes, the container's quota."""

from __future__ import annotations

from collections.abc import Iterator

from hwtune.domain.doctor import cpu
from hwtune.domain.doctor.profile_fit import Target
from hwtune.domain.doctor.records import GIB, MIB, Facts, Finding, Limit, Line, Space, Status

_SMALLEST_SHM = 1 * GIB
"""Workers and NCCL exchange data in /dev/shm; Docker gives 64 MiB unless told otherwise."""

_NEEDED = {"run directory": 1 * GIB, "temporary files": 1 * GIB, "compile cache": 1 * GIB}
_MODEL_CACHE_BYTES = 20 * GIB
"""A small model in BF16 with its tokenizer; a 27B needs 55 GB."""

_LIMITS = {
    "open files": (4096, "ulimit -n 65536 (sockets of requests, shards, shared memory)"),
    "processes": (4096, "ulimit -u 65536 (threads count as processes)"),
}
"""Limit -> the least that is enough, and what to do."""


def limit_findings(facts: Facts, target: Target) -> Iterator[Finding]:
    """Everything that runs out."""
    for space in facts.machine.spaces:
        yield _space(space, facts.machine.container)
    for limit in facts.machine.limits:
        yield from _limit(limit)
    yield from _memory(facts)
    yield from _quota(facts)
    if target.kind == "cpu":
        yield from _instructions(facts)


def _space(space: Space, container: str | None) -> Finding:
    line = Line(source=space.path, line=None, text=_room(space))
    status: Status = "ok"
    advice = ""
    text = f"{space.purpose}: {_room(space)}"
    if space.failure is not None:
        status, text = "unknown", f"{space.purpose}: {space.path}: {space.failure}"
    elif not space.writable:
        status, advice = "problem", f"make {space.path} writable, or move it with its variable"
        text = f"{space.purpose}: {space.path} cannot be written"
    elif space.purpose == "shared memory":
        if (space.total_bytes or 0) < _SMALLEST_SHM:
            status = "problem"
            advice = "docker run --shm-size 16g or --ipc=host" if container else "remount it larger"
            text += ": too small for tensor-parallel workers"
        elif (space.free_bytes or 0) < _SMALLEST_SHM:
            status, advice = "warning", "see the leftovers in /dev/shm"
    elif (space.free_bytes or 0) < _least(space):
        status, advice = "warning", f"free room below {space.path}"
    return Finding(
        id=f"space-{space.purpose.replace(' ', '-')}",
        topic="limits",
        status=status,
        text=text,
        evidence=(line,),
        advice=advice,
    )


def _least(space: Space) -> int:
    return _NEEDED.get(space.purpose, _MODEL_CACHE_BYTES)


def _room(space: Space) -> str:
    if space.total_bytes is None or space.free_bytes is None:
        return "size not known"
    return f"{space.free_bytes / GIB:.1f} of {space.total_bytes / GIB:.1f} GiB free"


def _limit(limit: Limit) -> Iterator[Finding]:
    least, advice = _LIMITS.get(limit.name, (0, ""))
    if limit.name == "address space" and limit.soft is not None:
        least, advice = limit.soft + 1, "ulimit -v unlimited: torch maps far more than it uses"
    enough = limit.soft is None or limit.soft >= least
    if not enough or limit.name in _LIMITS:
        shown = "unlimited" if limit.soft is None else str(limit.soft)
        yield Finding(
            id=f"limit-{limit.name.replace(' ', '-')}",
            topic="limits",
            status="ok" if enough else "warning",
            text=f"limit of {limit.name}: {shown}",
            evidence=(Line(source="/proc/self/limits", line=None, text=f"{limit.name}: {shown}"),),
            advice="" if enough else advice,
        )


def _memory(facts: Facts) -> Iterator[Finding]:
    machine = facts.machine
    free = machine.memory_available_bytes
    source, limit = "/proc/meminfo", machine.memory_total_bytes
    if machine.cgroup_memory_bytes is not None:
        room = machine.cgroup_memory_bytes - (machine.cgroup_memory_used_bytes or 0)
        if free is None or room < free:
            source, free, limit = "control group", room, machine.cgroup_memory_bytes
    if free is None or limit is None:
        text = "how much memory is free is not known"
        yield Finding(id="memory", topic="limits", status="unknown", text=text)
        return
    low = free < 4 * GIB
    yield Finding(
        id="memory",
        topic="limits",
        status="warning" if low else "ok",
        text=f"memory: {free / GIB:.1f} of {limit / GIB:.1f} GiB free ({source})",
        evidence=(Line(source=source, line=None, text=f"{free // MIB} MiB free"),),
        advice="loading weights needs the size of one shard; end what is not needed" if low else "",
    )


def _quota(facts: Facts) -> Iterator[Finding]:
    machine = facts.machine
    if machine.container is not None:
        text = f"this is a container ({machine.container})"
        yield Finding(id="container", topic="limits", status="ok", text=text)
    cpus = machine.cgroup_cpus if machine.cgroup_cpus is not None else float(machine.cpus)
    low = cpus < 2
    yield Finding(
        id="cpus",
        topic="limits",
        status="warning" if low else "ok",
        text=f"{cpus:g} CPUs may be used",
        evidence=(
            Line(
                source="control group" if machine.cgroup_cpus is not None else "affinity",
                line=None,
                text=f"{cpus:g}",
            ),
        ),
        advice="API server and engine each keep one busy: give the container at least two"
        if low
        else "",
    )


def _instructions(facts: Facts) -> Iterator[Finding]:
    output = facts.output("lscpu")
    have = cpu.flags(output)
    if not have or "avx2" not in have:
        return
    fast = "avx512_bf16" in have
    yield Finding(
        id="cpu-instructions",
        topic="limits",
        status="ok",
        text="AVX-512 BF16 is there"
        if fast
        else "no AVX-512 BF16: BF16 is computed in FP32, and hwtune's CPU kernel was not "
        "measured here",
        evidence=(Line(source=output.command, line=None, text=_wide(have)),),
    )


def _wide(have: frozenset[str]) -> str:
    return "Flags: " + " ".join(sorted(f for f in have if f.startswith(("avx", "amx"))))
