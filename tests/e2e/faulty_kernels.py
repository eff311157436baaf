"""Kernels of a user that each break in another way."""

from __future__ import annotations

from typing import Any

import torch
from hwtune_kernels.page_decode.cpu import page_decode_attention
from hwtune_kernels.prefill.cpu import prefill_attention


class LateFailure:
    """Right for some calls, then it raises for ever."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, **call: Any) -> None:
        self.calls += 1
        if self.calls > 5:
            call["output"].fill_(float("nan"))
            message = "device\nlost"
            raise RuntimeError(message)
        page_decode_attention(**call)


def wrong_shape(output: torch.Tensor, **call: Any) -> None:
    """Writes a result that does not fit."""
    output.copy_(torch.zeros(3, 3))


def own_result(output: torch.Tensor, **call: Any) -> torch.Tensor:
    """Returns its result instead of writing it."""
    return torch.zeros_like(output)


def not_a_number(output: torch.Tensor, **call: Any) -> None:
    """What a division by zero leaves."""
    output.fill_(float("nan"))


def five_percent_off(output: torch.Tensor, **call: Any) -> None:
    """Plausible numbers, and wrong."""
    prefill_attention(output=output, **call)
    output.mul_(1.05)


def half_written(output: torch.Tensor, **call: Any) -> None:
    """Forgets the second half of its rows."""
    right = torch.empty_like(output)
    prefill_attention(output=right, **call)
    output[: len(output) // 2] = right[: len(output) // 2]
