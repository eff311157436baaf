"""Which accelerators are there, from every command that may know."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from hwtune.domain.doctor import cpu, npu, nvidia, rocm
from hwtune.domain.doctor.records import (
    GIB,
    CommandOutput,
    Device,
    DeviceKind,
    DeviceProcess,
    Facts,
    Finding,
    Line,
)

COMMANDS: dict[str, tuple[str, ...]] = {
    "nvidia-gpus": nvidia.GPU_QUERY,
    "nvidia-header": nvidia.HEADER,
    "nvidia-processes": nvidia.PROCESS_QUERY,
    "hy-smi": ("hy-smi", *rocm.SMI_OPTIONS),
    "hy-smi-processes": ("hy-smi", *rocm.PIDS_OPTIONS),
    "rocm-smi": ("rocm-smi", *rocm.SMI_OPTIONS),
    "rocm-smi-processes": ("rocm-smi", *rocm.PIDS_OPTIONS),
    "amd-smi": rocm.AMD_SMI,
    "rocminfo": rocm.ROCMINFO,
    "npu": npu.INFO,
    "lscpu": cpu.LSCPU,
}
"""What is asked -> the command. Each runs with a time limit."""

SECOND_CHOICE: dict[str, tuple[str, ...]] = {"nvidia-gpus": nvidia.OLD_GPU_QUERY}
"""What to ask instead where the first command is refused."""

_DEVICE_FILES: dict[DeviceKind, tuple[str, ...]] = {
    "cuda": ("/dev/nvidia0", "/dev/nvidiactl"),
    "rocm": ("/dev/kfd",),
    "npu": ("/dev/davinci",),
}
"""What the driver puts into /dev; a container gets only what it was given."""

_KINDS: dict[DeviceKind, str] = {
    "cuda": "NVIDIA GPU",
    "rocm": "ROCm GPU",
    "npu": "Ascend NPU",
    "cpu": "CPU",
}

_LISTERS: dict[DeviceKind, tuple[str, ...]] = {
    "cuda": ("nvidia-gpus",),
    "rocm": ("hy-smi", "rocm-smi", "rocminfo", "amd-smi"),
    "npu": ("npu",),
    "cpu": ("lscpu",),
}
"""Commands that list the devices of a kind."""

_ADVICE = (
    (
        "Driver/library version mismatch",
        "the driver was updated under a running kernel: reboot, or reload the nvidia modules",
    ),
    ("couldn't communicate with the NVIDIA driver", "load the driver on the host (nvidia module)"),
    ("Failed to initialize NVML", "give the container the GPU: docker run --gpus all …"),
    ("-8005", "the NPU belongs to another container, or devices are not passed in"),
    ("-8020", "the NPU belongs to another container, or devices are not passed in"),
    ("ROCk module is NOT loaded", "load amdgpu on the host, or pass /dev/kfd and /dev/dri in"),
    ("Permission denied", "add the user to the groups of the device files (video, render)"),
)
"""Message -> what helps. Sources: NVIDIA's and ROCm's messages; vllm-ascend issue 2698 and
cann-container-image issue 46 for the NPU codes."""


def devices(facts: Facts) -> tuple[Device, ...]:
    """All accelerators, then the CPU."""
    found = [
        *nvidia.parse_gpus(facts.output("nvidia-gpus")),
        *_rocm(facts),
        *npu.parse_npus(facts.output("npu")),
    ]
    host = cpu.parse_cpu(facts.output("lscpu"))
    return (*found, *([host] if host else []))


def _rocm(facts: Facts) -> tuple[Device, ...]:
    """Memory and name come from the first SMI tool that answers, the architecture from rocminfo."""
    agents = rocm.parse_rocminfo(facts.output("rocminfo"))
    listed = (
        rocm.parse_smi(facts.output("hy-smi"))
        or rocm.parse_smi(facts.output("rocm-smi"))
        or rocm.parse_amd_smi(facts.output("amd-smi"))
    )
    if not listed:
        return agents
    if len(agents) != len(listed):
        return listed
    return tuple(
        dataclasses.replace(device, arch=device.arch or agent.arch)
        for device, agent in zip(listed, agents, strict=True)
    )


def processes(facts: Facts) -> tuple[DeviceProcess, ...]:
    """Processes that hold device memory, by process id."""
    found = (
        *nvidia.parse_processes(facts.output("nvidia-processes")),
        *rocm.parse_kfd_processes(facts.output("hy-smi-processes")),
        *rocm.parse_kfd_processes(facts.output("rocm-smi-processes")),
        *npu.parse_processes(facts.output("npu")),
    )
    return tuple({process.pid: process for process in found}.values())


def accelerator_findings(facts: Facts, found: Sequence[Device]) -> Iterator[Finding]:
    """What is there, what does not answer, what is unwell."""
    for kind in ("cuda", "rocm", "npu"):
        mine = [device for device in found if device.kind == kind]
        if mine:
            yield _present(kind, mine)
        yield from _unwell(kind, mine)
        yield from _silent(facts, kind, mine)
        yield from _files(facts, kind, mine)
    if all(device.kind == "cpu" for device in found):
        yield _only_cpu(facts, found)


def _present(kind: DeviceKind, mine: Sequence[Device]) -> Finding:
    names: dict[str, int] = {}
    for device in mine:
        memory = f", {device.memory_bytes / GIB:.0f} GiB" if device.memory_bytes else ""
        label = f"{device.name} ({device.arch or 'architecture not stated'}{memory})"
        names[label] = names.get(label, 0) + 1
    text = ", ".join(f"{count} x {label}" for label, count in names.items())
    return Finding(
        id=f"accelerator-{kind}",
        topic="accelerator",
        status="ok",
        text=f"{_KINDS[kind]}: {text}",
        evidence=tuple(device.evidence for device in mine[:4]),
    )


def _unwell(kind: DeviceKind, mine: Sequence[Device]) -> Iterator[Finding]:
    ill = [device for device in mine if device.healthy is False]
    if ill:
        yield Finding(
            id=f"health-{kind}",
            topic="accelerator",
            status="problem",
            text=f"{len(ill)} of {len(mine)} devices do not report OK: "
            + ", ".join(f"{device.name} {device.index}" for device in ill),
            evidence=tuple(device.evidence for device in ill[:4]),
            advice="npu-smi info -t health -i CARD says why; leave the device out until it is OK",
        )


def _silent(facts: Facts, kind: DeviceKind, mine: Sequence[Device]) -> Iterator[Finding]:
    """A command that is installed and gave no answer leaves the kind unknown."""
    for name in _LISTERS[kind]:
        output = facts.output(name)
        if not output.installed or (output.answered and mine):
            continue
        if output.answered:
            failed = f"{output.command}: printed no device that hwtune can read"
            line = _first_line(output)
        elif mine:
            continue
        else:
            failed, line = f"{output.command}: {output.failure}", output.failed()
        yield Finding(
            id=f"silent-{name}",
            topic="accelerator",
            status="unknown",
            text=f"{failed}; whether there is an {_KINDS[kind]} is not known",
            evidence=(line,),
            advice=_advice(output),
        )


def _first_line(output: CommandOutput) -> Line:
    for number, text in enumerate(output.stdout.splitlines(), start=1):
        if text.strip():
            return Line(source=output.command, line=number, text=text.strip()[:200])
    return Line(source=output.command, line=None, text="printed nothing")


def _advice(output: CommandOutput) -> str:
    said = f"{output.failure or ''}\n{output.stdout}"
    known = (advice for text, advice in _ADVICE if text in said)
    return next(known, f"run `{output.command}` by hand and look at what it says")


def _files(facts: Facts, kind: DeviceKind, mine: Sequence[Device]) -> Iterator[Finding]:
    names = _DEVICE_FILES[kind]
    there = [path for path in facts.machine.device_files if path.startswith(names)]
    asked = any(facts.output(name).installed for name in _LISTERS[kind])
    if there and not mine and not asked:
        yield Finding(
            id=f"no-command-{kind}",
            topic="accelerator",
            status="unknown",
            text=f"{there[0]} is there, but no command that describes an {_KINDS[kind]} is in PATH",
            evidence=(Line(source="/dev", line=None, text=" ".join(there[:8])),),
            advice=f"install or mount {' or '.join(_first_words(kind))}, then look again",
        )
    closed = [path for path in facts.machine.forbidden_files if path.startswith(names)]
    if closed:
        yield Finding(
            id=f"forbidden-{kind}",
            topic="accelerator",
            status="problem",
            text=f"this user may not open {', '.join(closed[:4])}: the {_KINDS[kind]} cannot be used",
            evidence=(Line(source="/dev", line=None, text=" ".join(closed[:8])),),
            advice="add the user to the group of the file (video, render, HwHiAiUser)",
        )
    if mine and not there:
        yield Finding(
            id=f"no-device-file-{kind}",
            topic="accelerator",
            status="warning",
            text=f"{mine[0].name} is listed, but {names[0]}… is not in /dev: this container may "
            "see the device and not use it",
            evidence=(mine[0].evidence,),
            advice="pass the device files into the container (--gpus, --device)",
        )


def _first_words(kind: DeviceKind) -> list[str]:
    return list(dict.fromkeys(COMMANDS[name][0] for name in _LISTERS[kind]))


def _only_cpu(facts: Facts, found: Sequence[Device]) -> Finding:
    tools = [COMMANDS[name][0] for name in COMMANDS if name != "lscpu"]
    asked = list(dict.fromkeys(tools))
    if not found:
        output = facts.output("lscpu")
        return Finding(
            id="accelerator-cpu",
            topic="accelerator",
            status="unknown",
            text="neither an accelerator nor the CPU could be read",
            evidence=(output.failed(),),
            advice="install util-linux (lscpu)",
        )
    cores = facts.machine.cpus
    return Finding(
        id="accelerator-cpu",
        topic="accelerator",
        status="ok",
        text=f"no accelerator seen; CPU: {found[0].name} ({found[0].arch}), {cores} usable",
        evidence=(
            found[0].evidence,
            Line(source="PATH", line=None, text=f"asked: {', '.join(asked)}"),
        ),
    )
