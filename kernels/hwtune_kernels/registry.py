"""Implementations by name, loaded when a layer is bound and not before.

A hardware profile names an implementation (``prefill.cpu``); the table says where it lives.
Every implementation has the signature of :func:`hwtune_kernels.reference.paged_attention`, for
one sequence, and writes into ``output``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

IMPLEMENTATIONS: dict[str, str] = {
    "prefill.cpu": "hwtune_kernels.prefill.cpu:prefill_attention",
    "decode.cpu": "hwtune_kernels.page_decode.cpu:page_decode_attention",
}


def is_available(name: str) -> bool:
    """Whether this release of the package has the implementation at all."""
    return name in IMPLEMENTATIONS


def load(name: str) -> Callable[..., Any]:
    """The function of an implementation.

    Raises:
        KeyError: no such implementation in this release.
        ImportError: its backend (torch, Triton, a vendor library) is not installed.
    """
    module, _, function = IMPLEMENTATIONS[name].partition(":")
    implementation: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return implementation
