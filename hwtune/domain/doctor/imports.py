"""What importing the packages in child processes showed (``--deep``)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hwtune.domain.doctor.profile_fit import Target
from hwtune.domain.doctor.records import CommandOutput, Facts, Finding

_PLATFORM = re.compile(r"platform (\w+)")
_PLATFORMS = {"cuda": "cuda", "rocm": "rocm", "npu": "npu", "cpu": "cpu"}
"""Device -> what the name of vLLM's platform class begins with (CudaPlatform, NPUPlatform …)."""


def import_findings(facts: Facts, target: Target) -> Iterator[Finding]:
    """One finding for each package, and one for the platform that vLLM chose."""
    for package, output in facts.deep.items():
        yield _import(package, output)
    vllm = facts.deep.get("vllm")
    if vllm is not None and vllm.answered:
        yield from _platform(vllm, target)


def _import(package: str, output: CommandOutput) -> Finding:
    last = (output.stdout.strip().splitlines() or ["no output"])[-1]
    return Finding(
        id=f"import-{package}",
        topic="engine",
        status="ok" if output.answered else "unknown" if output.timed_out else "problem",
        text=f"import {package}: {last if output.answered else output.failure}"[:300],
        evidence=(output.find(last) if output.answered else output.failed(),),
        advice="" if output.answered else "the findings above say what is missing",
    )


def _platform(output: CommandOutput, target: Target) -> Iterator[Finding]:
    """vLLM swallows what a platform plugin raises and goes on with the CPU (issue 48277)."""
    match = _PLATFORM.search(output.stdout)
    wanted = _PLATFORMS.get(target.kind or "")
    if match is None or wanted is None or match[1].lower().startswith(wanted):
        return
    yield Finding(
        id="platform-chosen",
        topic="engine",
        status="problem",
        text=f"vLLM chose {match[1]}; the server is to run on {target.kind}",
        evidence=(output.find(match[0]),),
        advice="vLLM does not say why a platform failed to register: run it with "
        "VLLM_LOGGING_LEVEL=DEBUG",
    )
