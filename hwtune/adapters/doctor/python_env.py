"""Asks a Python environment what is in it, in processes of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hwtune.adapters.doctor import commands, python_child
from hwtune.domain.doctor.records import CommandOutput, PythonFacts
from hwtune.io.typed import build

_DESCRIBE_TIMEOUT_S = 60.0
"""Reading the metadata of a full environment on a cold network disk."""

_IMPORT_TIMEOUT_S = 180.0
"""Importing torch and vLLM takes ten seconds, from a cold disk a minute."""

_IMPORTS = {
    "torch": "import torch; print('torch', torch.__version__)",
    "torch_npu": "import torch, torch_npu; print('torch_npu', torch_npu.__version__, "
    "'available', torch.npu.is_available())",
    "triton": "import triton; print('triton', triton.__version__)",
    "vllm": "import vllm; from vllm.platforms import current_platform as p; "
    "print('vllm', vllm.__version__, 'platform', p.__class__.__name__)",
}
"""Package -> what to run to see whether it imports, and what it then says of the machine."""


def read_python(executable: str) -> tuple[PythonFacts | None, str | None]:
    """What is installed there, or why that is not known. Imports nothing of it."""
    output = commands.run([executable, python_child.__file__], timeout_s=_DESCRIBE_TIMEOUT_S)
    if output.failure is not None:
        return None, f"{executable}: {output.failure}"
    for line in reversed(output.stdout.splitlines()):
        if line.startswith(python_child.MARK):
            try:
                data = json.loads(line.removeprefix(python_child.MARK))
                return build(PythonFacts, data), None
            except (TypeError, ValueError) as error:
                return None, f"{executable}: unreadable answer: {error}"
    return None, f"{executable}: is no Python that answers"


def read_libraries(python: PythonFacts) -> tuple[CommandOutput, ...]:
    """``ldd`` of the native parts: which shared libraries would not be found."""
    wanted: dict[str, Sequence[str]] = {path: ("ldd", path) for path in python.native}
    return tuple(commands.run_all(wanted).values())


def try_imports(python: PythonFacts) -> dict[str, CommandOutput]:
    """Imports each installed package of interest in a child process of its own."""
    outputs = {}
    for package, code in _IMPORTS.items():
        if python.owners(package):
            argv = [python.executable, "-c", code]
            outputs[package] = commands.run(argv, timeout_s=_IMPORT_TIMEOUT_S)
    return outputs
