"""What was asked of a machine, what it answered, and what was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["ok", "warning", "problem", "unknown"]
Topic = Literal["accelerator", "profile", "engine", "environment", "plugins", "leftovers", "limits"]
DeviceKind = Literal["cuda", "rocm", "npu", "cpu"]
"""vLLM's platform names, as in a hardware profile's ``device``."""

MIB = 2**20
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of evidence."""

    source: str
    """The command, file or variable it was read from."""
    line: int | None
    """Line number from 1; None where lines mean nothing."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at, and what to do about it."""

    id: str
    topic: Topic
    status: Status
    text: str
    evidence: tuple[Line, ...] = ()
    advice: str = ""
    """What to do; empty when there is nothing to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOutput:
    """What a command answered."""

    argv: tuple[str, ...]
    stdout: str = ""
    failure: str | None = None
    """Not installed, no answer in time, an exit status with its message; None for status 0."""
    installed: bool = True
    timed_out: bool = False

    @property
    def command(self) -> str:
        """As typed."""
        return " ".join(self.argv)

    @property
    def answered(self) -> bool:
        """Whether there is output to read."""
        return self.failure is None

    def find(self, text: str) -> Line:
        """The first line that holds ``text``; the command alone when none does."""
        lines = enumerate(self.stdout.splitlines(), start=1)
        number, line = next(((at, line) for at, line in lines if text in line), (None, ""))
        return Line(source=self.command, line=number, text=line.strip())

    def failed(self) -> Line:
        """The failure as evidence."""
        return Line(source=self.command, line=None, text=self.failure or "no output")


NOT_ASKED = CommandOutput(argv=("-",), failure="not asked", installed=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator, or the CPU, as a command describes it."""

    kind: DeviceKind
    index: str
    """As the command numbers it; NPUs have ``card/chip``."""
    name: str
    arch: str | None
    """``sm_90``, ``gfx936``, ``910B``, ``x86_64``; None when the command does not say."""
    memory_bytes: int | None
    used_bytes: int | None
    healthy: bool | None = None
    """What the command says of its health; None when it says nothing."""
    evidence: Line


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcess:
    """A process that holds memory of an accelerator, as its command lists it."""

    pid: int
    name: str
    used_bytes: int | None
    evidence: Line


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A pinned dependency of a distribution, evaluated by the environment's own ``packaging``."""

    text: str
    """As in the distribution's METADATA, e.g. ``torch==2.9.0``."""
    name: str
    installed: str | None
    satisfied: bool | None
    """None when it could not be evaluated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """An installed distribution that has to do with serving."""

    name: str
    """Lower case with dashes."""
    version: str
    location: str
    tags: tuple[str, ...]
    """Of its WHEEL file, e.g. ``cp311-cp311-manylinux_2_28_x86_64``."""
    packages: tuple[str, ...]
    """Which of the import packages of interest it brings: vllm, triton, torch …"""
    requires: tuple[Requirement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginEntry:
    """An entry point that vLLM or torch loads by itself."""

    group: str
    name: str
    value: str
    distribution: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """A small file of an installed package."""

    name: str
    """Path below site-packages, e.g. ``torch/version.py``."""
    path: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenMetadata:
    """A distribution of interest that importlib.metadata cannot read, or that names nothing."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFacts:
    """A Python environment, read without importing anything that is in it."""

    executable: str
    version: str
    machine: str
    """``platform.machine()`` of that interpreter."""
    distributions: tuple[Distribution, ...]
    broken: tuple[BrokenMetadata, ...]
    plugins: tuple[PluginEntry, ...]
    files: tuple[TextFile, ...]
    bundled_libraries: tuple[str, ...]
    """File names in ``torch/lib`` and the like, which a linker outside cannot see."""
    native: tuple[str, ...]
    """Paths of shared objects whose own dependencies are worth checking."""
    shadowing: tuple[str, ...]
    """Paths in the working directory that ``python -m`` would import instead of a package."""

    def distribution(self, name: str) -> Distribution | None:
        """The distribution of that name, or None."""
        return next((d for d in self.distributions if d.name == name), None)

    def owners(self, package: str) -> tuple[Distribution, ...]:
        """Distributions that bring an import package."""
        return tuple(d for d in self.distributions if package in d.packages)

    def file(self, name: str) -> TextFile | None:
        """One of the files read, or None."""
        return next((f for f in self.files if f.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """A process of this machine that may be a server, or holds what a server needs."""

    pid: int
    parent: int
    parent_name: str
    """Empty when the parent is gone or hidden."""
    name: str
    command: str
    """Shortened, secrets replaced."""
    state: str
    """One letter of ``/proc/<pid>/stat``: R, S, D (uninterruptible), Z (zombie) …"""
    age_s: float
    serves: bool
    """Whether it looks like a process of an inference server."""
    devices: tuple[str, ...]
    """Device files it has open."""
    ports: tuple[int, ...]
    """TCP ports it listens on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFile:
    """A file in ``/dev/shm``."""

    path: str
    size_bytes: int
    age_s: float
    mapped: bool | None
    """Whether some process has it mapped or open; None when some could not be looked into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Room in a file system."""

    purpose: str
    path: str
    total_bytes: int | None
    free_bytes: int | None
    writable: bool
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A resource limit in force; None is unlimited."""

    name: str
    soft: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """The operating system's side."""

    cpus: int
    """CPUs this process may run on."""
    memory_total_bytes: int | None
    memory_available_bytes: int | None
    cgroup_memory_bytes: int | None
    """Memory limit of the control group; None when there is none."""
    cgroup_memory_used_bytes: int | None
    cgroup_cpus: float | None
    """CPU quota of the control group in CPUs; None when there is none."""
    container: str | None
    """docker, podman, kubernetes; None when nothing says so."""
    spaces: tuple[Space, ...]
    limits: tuple[Limit, ...]
    processes: tuple[ProcessFacts, ...]
    shared_files: tuple[SharedFile, ...]
    hidden_processes: int
    """Processes of other users that could not be looked into."""
    listening: tuple[int, ...]
    """TCP ports that something listens on, whoever it is."""
    device_files: tuple[str, ...]
    """``/dev/kfd``, ``/dev/davinci0``, ``/dev/nvidia0`` …"""
    forbidden_files: tuple[str, ...]
    """Those of them that this user may not open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that was read."""

    commands: Mapping[str, CommandOutput]
    """By what they tell: ``nvidia-gpus``, ``npu``, ``lscpu`` …"""
    python: PythonFacts | None
    python_failure: str | None
    """Why ``python`` is None."""
    libraries: tuple[CommandOutput, ...]
    """``ldd`` of each of ``python.native``."""
    deep: Mapping[str, CommandOutput]
    """Imports tried in child processes, by package; empty unless asked for."""
    machine: MachineFacts
    environ: Mapping[str, str]
    port: int
    """The TCP port a server would be given."""

    def output(self, name: str) -> CommandOutput:
        """What a command answered; a stand-in when it was not run."""
        return self.commands.get(name, NOT_ASKED)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """The answer."""

    summary: str
    profile: str | None
    """The profile that was named, or the one that fits; None when none does."""
    devices: tuple[Device, ...]
    findings: tuple[Finding, ...]
    commands: tuple[CommandOutput, ...] = field(default=())

    @property
    def healthy(self) -> bool:
        """No problem was found."""
        return not any(finding.status == "problem" for finding in self.findings)
