"""Prefill by a library's own kernel: one interface, whatever the library calls its arguments.

A provider is any function that takes what :data:`INTERFACE` names, under these names or those in
:data:`ALIASES`: FlashAttention's varlen function with a block table, and everything modelled on it.
Its signature (or, for a torch operator, its schema) is read when a layer is bound; one that does
not fit is refused there, with the reason, and never called with a guess.

Which function it is stands in the hardware profile (``provider = "package.module:function"``). A
user's own function needs nothing else. None of the libraries has run here: they need their GPUs.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch

INTERFACE = (
    *("q", "k", "v", "cu_seqlens_q", "seqused_k", "block_table"),
    *("max_seqlen_q", "max_seqlen_k", "causal", "scale"),
)
"""q ``[num_tokens, num_heads, head_size]``; k and v ``[num_blocks, page, num_kv_heads, head_size]``
with a last stride of 1; cu_seqlens_q ``[sequences + 1]``, seqused_k ``[sequences]`` and block_table
``[sequences, pages]`` int32; the rest are numbers. The result has the shape of q."""

ALIASES: Mapping[str, tuple[str, ...]] = {
    "scale": ("softmax_scale", "sm_scale"),
    "seqused_k": ("seqlen_k",),
    "block_table": ("page_table",),
}
"""FlashAttention 2 and 3 (flash_attn_interface.py) and AITER (ops/mha.py, ops/triton/attention)."""

PLAIN: Mapping[str, Any] = {
    "window_size": (-1, -1),
    "softcap": 0.0,
    "q_descale": None,
    "k_descale": None,
    "v_descale": None,
    "alibi_slopes": None,
    "dropout_p": 0.0,
}
"""Plain attention in those libraries' words, for arguments that have no default."""

LAYOUT = ("layout", "bshd")
"""The DCU vendor's varlen_fwd_unified: a page holds tokens, then heads, as here."""

PROVIDERS: Mapping[str, str] = {
    "prefill.vendor": "",
    "prefill.flash_attn": "vllm.vllm_flash_attn:flash_attn_varlen_func",
    "prefill.aiter": "aiter.ops.triton.unified_attention:unified_attention",
}
"""Implementation -> the function it calls where the profile names none; the vendor's place differs
between its releases, so a profile must name it. AITER's is where vLLM 0.32 imports it from
(v1/attention/backends/rocm_aiter_unified_attn.py)."""


class ProviderError(ImportError):
    """The function is not there, or its signature is not what the interface needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One argument of a provider."""

    name: str
    required: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """How a provider is called."""

    names: Mapping[str, str]
    """The interface's name -> the provider's."""
    constants: Mapping[str, Any]
    out: bool
    """Whether it writes into an ``out`` that it is given."""


def load_provider(
    implementation: str, provider: str, options: Mapping[str, int]
) -> Callable[..., None]:
    """A provider as an implementation: see :class:`VarlenPrefill`.

    Args:
        implementation: a key of :data:`PROVIDERS`.
        provider: ``module:function``; empty takes the table's.
        options: further whole-number arguments of the function, e.g. ``fa_version``.

    Raises:
        ProviderError: no function is named, or its signature does not fit.
        ImportError: its module cannot be imported.
        AttributeError: the module lacks it.
        Exception: whatever the library raises when it is imported.
    """
    place = provider or PROVIDERS[implementation]
    module, colon, path = place.partition(":")
    if not (module and colon and path):
        message = f"{implementation} needs provider = 'package.module:function', not {place!r}"
        raise ProviderError(message)
    function: Any = reduce(getattr, path.split("."), importlib.import_module(module))
    return VarlenPrefill(function, bind(parameters_of(function, place), place, options))


def parameters_of(function: object, place: str) -> tuple[Parameter, ...]:
    """What the function can be given by name: from a torch operator's schema, or its signature.

    Raises:
        ProviderError: it has neither, or takes arguments by position only.
    """
    schema: Any = getattr(function, "_schema", None)
    schema = schema or getattr(getattr(function, "default", None), "_schema", None)
    if schema is not None:
        return tuple(
            Parameter(name=item.name, required=not item.has_default_value())
            for item in schema.arguments
        )
    try:
        signature = inspect.signature(function)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        message = f"{place} has no signature to check"
        raise ProviderError(message) from None
    found = []
    for item in signature.parameters.values():
        if item.kind is item.POSITIONAL_ONLY:
            message = f"{place} takes {item.name} by position only"
            raise ProviderError(message)
        if item.kind not in (item.VAR_KEYWORD, item.VAR_POSITIONAL):
            found.append(Parameter(name=item.name, required=item.default is item.empty))
    return tuple(found)


def bind(parameters: tuple[Parameter, ...], place: str, options: Mapping[str, int]) -> Binding:
    """How a function with these parameters is called.

    Raises:
        ProviderError: it lacks an argument of the interface or one of the options, or needs one
            that nobody gives.
    """
    known = {item.name for item in parameters}
    names, missing = {}, []
    for ours in INTERFACE:
        theirs = next((name for name in (ours, *ALIASES.get(ours, ())) if name in known), None)
        if theirs is None:
            missing.append(" or ".join((ours, *ALIASES.get(ours, ()))))
        else:
            names[ours] = theirs
    missing += [name for name in options if name not in known]
    if missing:
        message = f"{place} takes no {', '.join(missing)}"
        raise ProviderError(message)
    required = {item.name for item in parameters if item.required}
    constants = {name: value for name, value in PLAIN.items() if name in required}
    if LAYOUT[0] in known:
        constants[LAYOUT[0]] = LAYOUT[1]
    given = {*names.values(), *constants, *options, "out"}
    unknown = [item.name for item in parameters if item.required and item.name not in given]
    if unknown:
        message = f"{place} also needs {', '.join(unknown)}"
        raise ProviderError(message)
    return Binding(names=names, constants={**constants, **options}, out="out" in known)


class VarlenPrefill:
    """A provider with the arguments of an implementation for GPUs (see the registry)."""

    wants_max_context_len = True

    def __init__(self, function: Callable[..., Any], binding: Binding) -> None:
        self._function = function
        self._binding = binding

    def __call__(
        self,
        query: torch.Tensor,
        key_pages: torch.Tensor,
        value_pages: torch.Tensor,
        block_table: torch.Tensor,
        seq_lens: torch.Tensor,
        scale: float,
        output: torch.Tensor,
        *,
        query_start: torch.Tensor,
        max_query_len: int,
        max_context_len: int | None = None,
        **extras: object,
    ) -> None:
        """As :func:`hwtune_kernels.reference.batched_paged_attention`, without its extras.

        Args:
            max_context_len: no sequence is longer; None takes what the block table can hold.

        Raises:
            ValueError: a window, soft cap, sinks or scales, or a result of another shape.
        """
        if extras:
            message = f"a prefill provider computes no {', '.join(sorted(extras))}"
            raise ValueError(message)
        longest = max_context_len or block_table.shape[1] * key_pages.shape[1]
        given = {
            "q": query,
            "k": key_pages,
            "v": value_pages,
            "cu_seqlens_q": query_start,
            "seqused_k": seq_lens,
            "block_table": block_table,
            "max_seqlen_q": max_query_len,
            "max_seqlen_k": longest,
            "causal": True,
            "scale": scale,
        }
        named = {theirs: given[ours] for ours, theirs in self._binding.names.items()}
        if self._binding.out:
            named["out"] = output
        self._keep(self._function(**named, **self._binding.constants), output)

    def _keep(self, result: Any, output: torch.Tensor) -> None:  # noqa: ANN401 - a library's
        """Copies a result that is not ``output`` itself; a tuple's first is the attention."""
        if isinstance(result, (tuple, list)):
            result = result[0]
        if result is None and self._binding.out:
            return
        shape = tuple(getattr(result, "shape", ()))
        if shape != tuple(output.shape):
            message = f"a prefill provider returned {shape or result!r}, not {tuple(output.shape)}"
            raise ValueError(message)
        if result.data_ptr() != output.data_ptr():
            output.copy_(result)
