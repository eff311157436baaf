"""What the Triton launchers share: a launch as a value, and the checks on tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import triton

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether kernels imported together with this module run in Triton's interpreter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One kernel launch, decided but not made: it can be run, or compiled for another target."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    options: dict[str, int] = field(default_factory=dict)
    """``num_warps`` and the like; empty leaves Triton's defaults."""

    def run(self) -> None:
        """Launches on the current stream (or in the interpreter)."""
        self.kernel[self.grid](*self.arguments, **self.constants, **self.options)


def upcast(query: torch.Tensor) -> bool:
    """Triton's interpreter multiplies BF16 as raw integers (triton issue 11584); FP32 is right."""
    return INTERPRETED and query.dtype == torch.bfloat16


def check_tensors(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    output: torch.Tensor,
    scale: float,
    *,
    fp8: bool,
) -> None:
    """Refuses what a kernel would read wrongly.

    Raises:
        ValueError: a last stride that is not 1, shapes or dtypes that do not fit each other.
    """
    tensors = {"query": query, "K": key_pages, "V": value_pages, "output": output}
    for name, tensor in tensors.items():
        if tensor.stride(-1) != 1:
            message = f"{name} has a last stride of {tensor.stride(-1)}, not 1"
            raise ValueError(message)
    if output.shape != query.shape:
        message = f"output {tuple(output.shape)} has not the shape of query {tuple(query.shape)}"
        raise ValueError(message)
    if value_pages.shape != key_pages.shape or key_pages.shape[3] != query.shape[2]:
        shapes = [tuple(tensor.shape) for tensor in (query, key_pages, value_pages)]
        message = f"query, K and V do not fit each other: {shapes}"
        raise ValueError(message)
    if (key_pages.dtype != query.dtype) != fp8 or value_pages.dtype != key_pages.dtype:
        message = (
            f"{key_pages.dtype} and {value_pages.dtype} cache with {query.dtype} queries: "
            "an FP8 cache needs both scales, any other none"
        )
        raise ValueError(message)
    if not scale > 0:
        message = f"scale must be positive, not {scale}"
        raise ValueError(message)
