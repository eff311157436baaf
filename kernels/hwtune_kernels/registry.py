"""Implementations by name, loaded when a layer is bound and not before.

A hardware profile names an implementation. A plain name (``prefill.cpu``) is one of this package's,
and the table says where it lives. A name with a colon (``my_kernels.decode:Decode``) is the user's
own: any importable module and a function or class in it. A class is instantiated without arguments,
once per layer; the instance is what is called.

Every implementation has the signature of :func:`hwtune_kernels.reference.paged_attention`, for
one sequence, writes into ``output`` and returns None (or ``output`` itself).
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

IMPLEMENTATIONS: dict[str, str] = {
    "prefill.cpu": "hwtune_kernels.prefill.cpu:prefill_attention",
    "decode.cpu": "hwtune_kernels.page_decode.cpu:page_decode_attention",
}


def is_available(name: str) -> bool:
    """Whether this package has the implementation, or the user's module can be found here."""
    if ":" not in name:
        return name in IMPLEMENTATIONS
    try:
        return importlib.util.find_spec(name.partition(":")[0]) is not None
    except Exception:  # noqa: BLE001 - this imports the parents, which are the user's code
        return False


def load(name: str) -> Callable[..., Any]:
    """The function of an implementation, or an instance of its class.

    Raises:
        KeyError: no such implementation in this release.
        ImportError: its backend (torch, Triton, a vendor library) is not installed.
        AttributeError: the user's module lacks what is named.
        TypeError: what is named cannot be called.
        Exception: whatever the user's module or class raises.
    """
    module, _, path = (name if ":" in name else IMPLEMENTATIONS[name]).partition(":")
    found: Any = functools.reduce(getattr, path.split("."), importlib.import_module(module))
    implementation = found() if isinstance(found, type) else found
    if not callable(implementation):
        message = f"{name} is a {type(implementation).__name__}, which cannot be called"
        raise TypeError(message)
    return implementation  # type: ignore[no-any-return]
