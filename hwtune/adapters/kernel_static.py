"""Compiles our kernels and vLLM's for targets that need not be here, in a process of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hwtune.adapters.packages import require_package
from hwtune.adapters.vllm.discovery import installed_version
from hwtune.domain.errors import ExternalFailureError, InputError, MissingDependencyError
from hwtune.domain.kernel_static import StaticReport, StaticRow, StaticShape

_MODULE = "hwtune_kernels.static"
_MARK = "hwtune-static: "
_TIMEOUT_S = 900
_NEEDED = ("torch", "triton", "vllm")


def compile_static(
    targets: Sequence[str], shape: StaticShape, tunings: Mapping[str, Mapping[str, dict[str, int]]]
) -> StaticReport:
    """The static report. Needs no device; takes about ten seconds per target.

    Args:
        targets: names of ``hwtune_kernels.static``'s table, e.g. ``sm_90``.
        shape: the layer.
        tunings: target -> implementation -> launch constants; absent ones have their defaults.

    Raises:
        MissingDependencyError: torch, Triton or vLLM (for the baseline) is not installed.
        InputError: an unknown target, or a shape or tuning that a kernel does not take.
        ExternalFailureError: the compiler failed.
    """
    require()
    request = {"targets": list(targets), "shape": dataclasses.asdict(shape), "tunings": tunings}
    answer = ask(request)
    if "missing" in answer:
        message = f"the static table needs {answer['missing']}, which cannot be imported here"
        raise MissingDependencyError(message)
    if "no_baseline" in answer:
        raise MissingDependencyError(answer["no_baseline"])
    if "refused" in answer:
        raise InputError(answer["refused"])
    return StaticReport(
        triton_version=answer["triton"],
        vllm_version=installed_version("vllm") or "of unknown version",
        shape=shape,
        rows=tuple(StaticRow(**row) for row in answer["rows"]),
        notes=tuple((name, note) for name, note in answer["notes"].items() if note),
    )


def require() -> None:
    """Raises MissingDependencyError where a package is not installed that compiling needs."""
    for name in _NEEDED:
        require_package(name, "the static table")


def ask(request: dict[str, Any]) -> dict[str, Any]:
    """One request to ``python -m hwtune_kernels.static``, and its answer.

    Raises:
        ExternalFailureError: it died, or took too long.
    """
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", _MODULE],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        message = f"Triton did not finish compiling within {_TIMEOUT_S} s"
        raise ExternalFailureError(message) from None
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(_MARK):
            answer: dict[str, Any] = json.loads(line.removeprefix(_MARK))
            return answer
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    message = f"Triton's compiler failed (exit status {done.returncode}): {last[:300]}"
    raise ExternalFailureError(message)
