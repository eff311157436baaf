"""Implementations by name, loaded when a layer is bound and not before.

A hardware profile names an implementation. A plain name (``prefill.cpu``) is one of this package's,
and the table says where it lives. A name with a colon (``my_kernels.decode:Decode``) is the user's
own: any importable module and a function or class in it. A class is instantiated without arguments,
once per layer; the instance is what is called.

An implementation for the CPU has the signature of
:func:`hwtune_kernels.reference.paged_attention`, for one sequence. One for a GPU has that of
:func:`hwtune_kernels.reference.batched_paged_attention` plus ``max_query_len`` (int), for a batch,
and ``max_context_len`` (int) if it has an attribute ``wants_max_context_len`` that is true; ``window``, ``soft_cap``, ``sinks`` and the scales are given only where a layer has them. Either
writes into ``output`` and returns None (or ``output`` itself).
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

IMPLEMENTATIONS: dict[str, str] = {
    "prefill.cpu": "hwtune_kernels.prefill.cpu:prefill_attention",
    "prefill.triton": "hwtune_kernels.prefill.triton:tiled_prefill",
    "decode.cpu": "hwtune_kernels.page_decode.cpu:page_decode_attention",
    "decode.triton": "hwtune_kernels.page_decode.triton:page_decode",
}
PROVIDED = ("prefill.vendor", "prefill.flash_attn", "prefill.aiter")
"""A library's function behind one interface: see :mod:`hwtune_kernels.prefill.varlen`."""
TUNINGS: dict[str, str] = {
    "prefill.triton": "hwtune_kernels.prefill.spec:tuning_of",
    "decode.triton": "hwtune_kernels.page_decode.spec:tuning_of",
}
"""What reads the tuning table of an implementation; needs no torch."""


def is_available(name: str) -> bool:
    """Whether this package has the implementation, or the user's module can be found here."""
    if ":" not in name:
        return name in IMPLEMENTATIONS or name in PROVIDED
    try:
        return importlib.util.find_spec(name.partition(":")[0]) is not None
    except Exception:  # noqa: BLE001 - this imports the parents, which are the user's code
        return False


def read_tuning(name: str, values: Mapping[str, int]) -> object:
    """The tuning of an implementation as it takes it: its own record, or the plain table.

    Raises:
        ValueError: an implementation of ours has no such tuning.
    """
    if name in TUNINGS:
        read: Callable[[Mapping[str, int]], object] = _find(TUNINGS[name])
        return read(values)
    if name in IMPLEMENTATIONS and values:
        message = f"{name} has nothing to tune, but is given {', '.join(sorted(values))}"
        raise ValueError(message)
    return dict(values)


def load(
    name: str, tuning: Mapping[str, int] | None = None, provider: str = ""
) -> Callable[..., Any]:
    """The function of an implementation, or an instance of its class, with its tuning bound.

    Args:
        name: the implementation.
        tuning: launch constants; for a library's function further arguments of it.
        provider: ``module:function`` of the library, for the implementations that call one.

    Raises:
        ValueError: the implementation has no such tuning.
        KeyError: no such implementation in this release.
        ImportError: its backend (torch, Triton, a vendor library) is not installed.
        AttributeError: the user's module lacks what is named.
        TypeError: what is named cannot be called.
        Exception: whatever the user's module or class raises.
    """
    if name in PROVIDED:
        from hwtune_kernels.prefill.varlen import load_provider

        return load_provider(name, provider, tuning or {})
    if provider:
        message = f"{name} calls no library, but is given provider {provider}"
        raise ValueError(message)
    found: Any = _find(name if ":" in name else IMPLEMENTATIONS[name])
    implementation = found() if isinstance(found, type) else found
    if not callable(implementation):
        message = f"{name} is a {type(implementation).__name__}, which cannot be called"
        raise TypeError(message)
    if tuning:
        bound = functools.partial(implementation, tuning=read_tuning(name, tuning))
        return functools.update_wrapper(bound, implementation, ("wants_max_context_len",), ())
    return implementation  # type: ignore[no-any-return]


def _find(place: str) -> Any:  # noqa: ANN401 - whatever a module holds
    module, _, path = place.partition(":")
    return functools.reduce(getattr, path.split("."), importlib.import_module(module))
