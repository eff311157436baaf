"""Packages that do not belong together, to this processor, or are not what will be imported."""

from __future__ import annotations

from collections.abc import Iterator

from hwtune.domain.doctor.records import (
    Distribution,
    Finding,
    Line,
    PythonFacts,
    Requirement,
    Status,
)

CORE = ("torch", "torch-npu", "triton", "triton-rocm", "triton-ascend")
"""Compiled against one another: a version that is not the pinned one breaks at import or later."""

_MACHINES = ("x86_64", "aarch64", "ppc64le", "s390x", "riscv64")


def package_findings(python: PythonFacts) -> Iterator[Finding]:
    """Damaged metadata, unmet pins, wheels of another processor, and a checkout that wins over
    what is installed."""
    yield from _broken(python)
    yield from _pins(python)
    yield from _machine(python)
    yield from _shadowed(python)


def _broken(python: PythonFacts) -> Iterator[Finding]:
    """Half-removed and half-written packages; vLLM reads the entry points of all."""
    if python.broken:
        names = [item.path.rpartition("/")[2] for item in python.broken]
        yield Finding(
            id="broken-metadata",
            topic="engine",
            status="warning" if all(name.startswith("~") for name in names) else "problem",
            text=f"{len(names)} packages are half removed or damaged: {', '.join(names[:4])}",
            evidence=tuple(
                Line(source=item.path, line=None, text=item.reason) for item in python.broken
            ),
            advice="install the package again, or remove the folder where pip left it behind",
        )


def _pins(python: PythonFacts) -> Iterator[Finding]:
    """What a distribution of interest pins and does not get."""
    for distribution in python.distributions:
        for requirement in distribution.requires:
            if requirement.satisfied is not True and requirement.installed is not None:
                yield _pin(distribution, requirement)


def _pin(distribution: Distribution, requirement: Requirement) -> Finding:
    core = requirement.name in CORE
    broken: Status = "problem" if core else "warning"
    verdict = "wants" if requirement.satisfied is False else "may not accept (not evaluated):"
    return Finding(
        id=f"pin-{distribution.name}-{requirement.name}",
        topic="engine",
        status="unknown" if requirement.satisfied is None else broken,
        text=f"{distribution.name} {distribution.version} {verdict} {requirement.text}; "
        f"installed is {requirement.name} {requirement.installed}",
        evidence=(
            Line(
                source=f"METADATA of {distribution.name}",
                line=None,
                text=f"Requires-Dist: {requirement.text}",
            ),
        ),
        advice="install the pinned version; compiled parts were built against it" if core else "",
    )


def _machine(python: PythonFacts) -> Iterator[Finding]:
    """A wheel for another processor installs by hand and fails at import."""
    for distribution in python.distributions:
        machines = {m for tag in distribution.tags for m in _MACHINES if tag.endswith(m)}
        if machines and python.machine not in machines:
            yield Finding(
                id=f"wheel-{distribution.name}",
                topic="engine",
                status="problem",
                text=f"{distribution.name} {distribution.version} is built for "
                f"{', '.join(sorted(machines))}; this Python runs on {python.machine}",
                evidence=(
                    Line(
                        source=f"WHEEL of {distribution.name}",
                        line=None,
                        text=f"Tag: {distribution.tags[0]}",
                    ),
                ),
                advice=f"install the {python.machine} wheel, or the image of that architecture",
            )


def _shadowed(python: PythonFacts) -> Iterator[Finding]:
    """``python -m vllm…`` looks into the working directory first: a checkout there wins."""
    if python.shadowing:
        yield Finding(
            id="shadowed",
            topic="engine",
            status="problem",
            text=f"{python.shadowing[0]} is imported instead of the installed package when a "
            "server is started from here",
            evidence=tuple(Line(source=p, line=None, text="exists") for p in python.shadowing),
            advice="start from another directory",
        )
