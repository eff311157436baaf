"""What earlier servers left behind: processes, device memory, the port, shared memory.

Everything is shown; nothing is ended or removed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hwtune.domain.doctor.profile_fit import Target
from hwtune.domain.doctor.records import (
    GIB,
    MIB,
    Device,
    DeviceProcess,
    Facts,
    Finding,
    Line,
    ProcessFacts,
    SharedFile,
    Status,
)

_WORKER = re.compile(r"EngineCore|VLLM::|VLLM.*Worker|Worker_[TD]P|RayWorkerWrapper", re.IGNORECASE)
"""Names that vLLM's own processes give themselves; ``ps`` cuts them to 15 letters
(``VLLM::EngineCor``)."""

_STARTS_ENGINES = re.compile(r"python|pypy|pt_main|vllm|ray|gunicorn|uvicorn", re.IGNORECASE)
"""Names of programs that start engines as children of their own."""

_USED_SHARE = 0.05
"""Share of a device's memory that drivers and an idle context stay below."""

_LARGE_SHARED_BYTES = 64 * MIB
_STALE_S = 60.0
"""A shared file of a server that starts right now may not be mapped yet."""

_SECRET_OPTION = r"--(?:\w+[-_])*(?:key|token|secret|password|auth)(?![\w-])"
_SECRETS = (
    # vLLM's --api-key takes several; all words up to the next option are left out.
    re.compile(rf"({_SECRET_OPTION} )\S+(?: (?!-)\S+)*"),
    re.compile(rf"((?:{_SECRET_OPTION}|\b\w*(?:KEY|TOKEN|SECRET|PASSWORD))=)\S+"),
)


def without_secrets(command: str) -> str:
    """A command line that may be pasted into an issue: values of keys and tokens left out."""
    for pattern in _SECRETS:
        command = pattern.sub(r"\1…", command)
    return command


def leftover_findings(
    facts: Facts, target: Target, found: Sequence[Device], holding: Sequence[DeviceProcess]
) -> Iterator[Finding]:
    """Servers, orphans, the port, the device's memory, shared memory."""
    servers = [process for process in facts.machine.processes if process.serves]
    orphans = [process for process in servers if _is_orphan(process, servers)]
    yield from _orphans(orphans)
    yield from _stuck(servers)
    yield from _running([process for process in servers if process not in orphans])
    yield from _port(facts)
    yield from _device_memory(facts, target, found, holding)
    yield from _shared(facts)
    if not servers:
        yield Finding(
            id="servers",
            topic="leftovers",
            status="ok",
            text="no process of an inference server runs here",
            evidence=(_looked(facts),),
        )


def _looked(facts: Facts) -> Line:
    hidden = facts.machine.hidden_processes
    note = f", {hidden} of other users could not be looked into" if hidden else ""
    return Line(source="/proc", line=None, text=f"all processes looked at{note}")


def _is_orphan(process: ProcessFacts, servers: Sequence[ProcessFacts]) -> bool:
    """An engine or worker whose server is gone: SIGKILL of the API server leaves them.

    Orphans belong to init, or to whatever collects them (systemd, a container's init, a shell). A
    Python program as parent is no server by name and may well be one: ``vllm.LLM`` in a script.
    """
    parents = {server.pid for server in servers}
    return (
        bool(_WORKER.search(f"{process.name} {process.command}"))
        and process.parent not in parents
        and not _STARTS_ENGINES.match(process.parent_name)
    )


def _orphans(orphans: Sequence[ProcessFacts]) -> Iterator[Finding]:
    if not orphans:
        return
    holds = sorted({device for process in orphans for device in process.devices})
    text = f"{len(orphans)} engine or worker processes outlived their server"
    if holds:
        text += f" and hold {', '.join(holds[:4])}"
    yield Finding(
        id="orphans",
        topic="leftovers",
        status="problem",
        text=text,
        evidence=tuple(_line(process) for process in orphans[:8]),
        advice="make sure nobody needs them, then end them by process id: kill "
        + " ".join(str(process.pid) for process in orphans),
    )


def _stuck(servers: Sequence[ProcessFacts]) -> Iterator[Finding]:
    stuck = [process for process in servers if process.state in ("D", "Z")]
    if stuck:
        yield Finding(
            id="stuck",
            topic="leftovers",
            status="warning",
            text=f"{len(stuck)} server processes are dead but not collected (Z) or wait inside the "
            "kernel (D); the latter cannot be ended and may hold the device",
            evidence=tuple(_line(process) for process in stuck[:8]),
            advice="Z: end or restart the parent. D for minutes: the driver hangs; see dmesg",
        )


def _running(servers: Sequence[ProcessFacts]) -> Iterator[Finding]:
    if servers:
        ports = sorted({port for process in servers for port in process.ports})
        at = f", listening on {', '.join(map(str, ports))}" if ports else ""
        yield Finding(
            id="servers",
            topic="leftovers",
            status="warning",
            text=f"{len(servers)} processes of inference servers run here{at}",
            evidence=tuple(_line(process) for process in servers[:8]),
            advice="a measurement beside them measures both; they share device and memory",
        )


def _port(facts: Facts) -> Iterator[Finding]:
    port = facts.port
    holders = [process for process in facts.machine.processes if port in process.ports]
    if port not in facts.machine.listening and not holders:
        yield Finding(
            id="port",
            topic="leftovers",
            status="ok",
            text=f"port {port} is free",
            evidence=(Line(source="/proc/net/tcp", line=None, text=f"nothing listens on {port}"),),
        )
        return
    who = f"process {holders[0].pid}" if holders else "a process that is not visible from here"
    yield Finding(
        id="port",
        topic="leftovers",
        status="warning",
        text=f"port {port} is taken by {who}",
        evidence=tuple(_line(process) for process in holders[:2])
        or (Line(source="/proc/net/tcp", line=None, text=f"LISTEN on {port}"),),
        advice="serve on another one with --port, or end that process",
    )


def _device_memory(
    facts: Facts, target: Target, found: Sequence[Device], holding: Sequence[DeviceProcess]
) -> Iterator[Finding]:
    mine = [device for device in found if device.kind == target.kind and device.memory_bytes]
    used = [d for d in mine if (d.used_bytes or 0) > _USED_SHARE * (d.memory_bytes or 1)]
    if not mine:
        return
    if not used:
        yield Finding(
            id="device-memory",
            topic="leftovers",
            status="ok",
            text=f"the memory of {len(mine)} devices is free",
            evidence=(mine[0].evidence,),
        )
        return
    seen = {process.pid for process in facts.machine.processes}
    foreign = [process for process in holding if process.pid not in seen]
    total = sum(device.used_bytes or 0 for device in used)
    text = f"{len(used)} of {len(mine)} devices hold {total / GIB:.1f} GiB"
    if not holding:
        text += "; no command names who: another container, or a process that died in the driver"
    elif foreign:
        text += f"; {len(foreign)} of {len(holding)} processes are not visible from here"
    yield Finding(
        id="device-memory",
        topic="leftovers",
        status="warning",
        text=text,
        evidence=(
            *(device.evidence for device in used[:4]),
            *(process.evidence for process in holding[:8]),
        ),
        advice="vLLM counts it against --gpu-memory-utilization: end what is not needed, by "
        "process id",
    )


def _shared(facts: Facts) -> Iterator[Finding]:
    """Files that no process has open or mapped; where some processes are hidden, only large ones
    are worth a word, and whether they are used stays open."""
    old = [file for file in facts.machine.shared_files if file.age_s > _STALE_S]
    stale = [file for file in old if file.mapped is False]
    open_question = [file for file in old if file.mapped is None]
    if stale:
        yield _shared_finding(stale, "belong to no process", "warning")
    elif sum(file.size_bytes for file in open_question) > _LARGE_SHARED_BYTES:
        hidden = f"may belong to one of {facts.machine.hidden_processes} processes of other users"
        yield _shared_finding(open_question, hidden, "unknown")


def _shared_finding(files: Sequence[SharedFile], whose: str, status: Status) -> Finding:
    total = sum(file.size_bytes for file in files)
    largest = sorted(files, key=lambda file: -file.size_bytes)[:5]
    return Finding(
        id="shared-memory",
        topic="leftovers",
        status=status if total > _LARGE_SHARED_BYTES else "ok",
        text=f"{len(files)} files in /dev/shm {whose}: {total / MIB:.0f} MiB of memory",
        evidence=tuple(
            Line(
                source=file.path,
                line=None,
                text=f"{file.size_bytes / MIB:.1f} MiB, {_age(file.age_s)} old",
            )
            for file in largest
        ),
        advice="remove them when no server of another container uses them (ipc=host is shared)",
    )


def _line(process: ProcessFacts) -> Line:
    holds = f", holds {' '.join(process.devices[:4])}" if process.devices else ""
    return Line(
        source=f"/proc/{process.pid}",
        line=None,
        text=f"{process.name}, parent {process.parent}, state {process.state}, "
        f"{_age(process.age_s)} old{holds}: {process.command}",
    )


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
