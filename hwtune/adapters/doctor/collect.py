"""Reads everything that the doctor judges."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from hwtune.adapters.doctor import commands
from hwtune.adapters.doctor.machine import read_machine
from hwtune.adapters.doctor.python_env import read_libraries, read_python, try_imports
from hwtune.domain.doctor.accelerators import COMMANDS, SECOND_CHOICE
from hwtune.domain.doctor.records import CommandOutput, Facts
from hwtune.domain.errors import InputError

_REFUSED = "not a valid field to query"
"""nvidia-smi of an old driver, asked for a field it does not know."""


def collect(*, python: str | None, port: int, deep: bool) -> Facts:
    """What this machine and a Python environment show.

    Args:
        python: the interpreter that has vLLM; this one when None.
        port: the port a server would be given.
        deep: also import torch, triton, torch_npu and vLLM, each in a child process.

    Raises:
        InputError: ``python`` is no program that can be run.
    """
    if python is not None and commands.find(python) is None:
        message = f"--python {python}: no such program, or not executable"
        raise InputError(message)
    facts, failure = read_python(python or sys.executable)
    return Facts(
        commands=_ask(),
        python=facts,
        python_failure=failure,
        libraries=() if facts is None else read_libraries(facts),
        deep=try_imports(facts) if deep and facts is not None else {},
        machine=read_machine(port),
        environ=dict(os.environ),
        port=port,
    )


def _ask() -> Mapping[str, CommandOutput]:
    outputs = commands.run_all(COMMANDS)
    for name, argv in SECOND_CHOICE.items():
        first = outputs[name]
        if first.installed and _REFUSED in f"{first.failure} {first.stdout}":
            outputs[name] = commands.run(argv)
    return outputs
