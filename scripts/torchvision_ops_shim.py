"""Lets a CUDA build of torchvision be imported beside a CPU build of torch.

PyPI's torchvision for x86-64 registers fake kernels for ``torchvision::nms`` at import, and fails
with "operator torchvision::nms does not exist" when its CUDA library did not load. vLLM's Qwen3.5
module imports torchvision through transformers' image processors even for a text-only model.
Declaring the two missing schemas is enough: nothing here ever processes an image. A torchvision
built for the CPU declares its own operators, and this module then changes nothing.

Installed into the demo's virtual environment by ``setup_env.sh`` with a ``.pth`` file; it is not
part of the hwtune package.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

_SCHEMAS = ("nms", "qnms")
_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def _library_loads() -> bool:
    """Whether torchvision's own compiled operators can be loaded beside this torch."""
    from pathlib import Path

    import torch

    spec = importlib.machinery.PathFinder.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return True
    for library in Path(spec.origin).parent.glob("_C*.so"):
        try:
            torch.ops.load_library(str(library))
        except OSError:
            return False
    return True


def _declare_missing_operators() -> None:
    import torch

    if _library_loads():
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in _SCHEMAS:
        library.define(f"{name}{_SIGNATURE}")
    _keep_alive.append(library)


_keep_alive: list[object] = []


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    """Declares the operators once, right before torchvision is first imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            _declare_missing_operators()


sys.meta_path.insert(0, _BeforeTorchvision())
