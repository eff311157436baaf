"""Triton kernels run compiled where there is a GPU and in Triton's interpreter elsewhere.

Triton decides for its own library as it is imported, so it is imported here, before any test. The
environment variable is taken back at once: servers that tests start are not to inherit it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

import pytest


def _import_triton() -> Any:
    if importlib.util.find_spec("triton") is None or importlib.util.find_spec("torch") is None:
        return None
    import torch

    with pytest.MonkeyPatch.context() as patch:
        if not torch.cuda.is_available():
            patch.setenv("TRITON_INTERPRET", "1")
        import triton
        import triton.language
    return triton


_TRITON = _import_triton()


@pytest.fixture
def triton_device() -> Iterator[str]:
    """The device of the tensors; a test imports the kernels itself, inside."""
    if _TRITON is None:
        pytest.skip("triton is not installed here; it belongs to the GPU environment")
    import torch

    if torch.cuda.is_available():
        yield "cuda"
        return
    with _TRITON.knobs.runtime.scope():
        _TRITON.knobs.runtime.interpret = True
        _forget_compiled()
        yield "cpu"


def _forget_compiled() -> None:
    """A kernel of ours is interpreted or not as its module was imported."""
    call = sys.modules.get("hwtune_kernels.triton_call")
    if call is None or call.INTERPRETED:
        return
    for name in [name for name in sys.modules if name.startswith("hwtune_kernels.")]:
        del sys.modules[name]
