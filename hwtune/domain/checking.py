"""Checked mode: how far a kernel may be from vLLM's own path, and how far it was.

The measure is the relative error of an output row (one token, one head): the largest difference in
the row over the largest value that vLLM's path has there. A row shrinks as a whole with the length
of the context, so that an absolute tolerance would pass anything on long ones.
"""

from __future__ import annotations

from dataclasses import dataclass

_SPACINGS = 2.5
_TOLERANCES = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-10}
"""Spacing of the numbers just above 1; for float32 that of TF32, in which GPUs multiply. Measured
on vLLM 0.32 CPU over 24 shapes (6/1/64 and 24/4/256 heads, query 1 to 512, context 40 to 8192,
scores of normal and of sixfold size): correct kernels stayed below 1.15 spacings in bfloat16 and
1.25 in float16; a scale wrong by 2 % began at 3.3."""
_QUANTISED_TOLERANCE = 0.15
"""KV caches of 8 bits, where a path may multiply in 8 bits too: what vLLM's own tests accept
(tests/kernels/attention/test_triton_unified_attention.py). Not measured here."""

SMALLEST_ROW = 1e-3
"""A row smaller than this share of the call's largest is measured against that share, because all
of a row may cancel out."""


def tolerance_for(dtype: str, kv_cache_dtype: str) -> float:
    """Largest accepted relative error of an output row."""
    if kv_cache_dtype not in ("auto", *_TOLERANCES):
        return _QUANTISED_TOLERANCE
    return _SPACINGS * _TOLERANCES.get(dtype, _TOLERANCES["float16"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A kernel's output against that of vLLM's own path for the same call."""

    absolute: float
    """Largest, over the elements that are finite in both."""
    relative: float
    """Largest of all rows, over the elements that are finite in both."""
    non_finite: int
    """Elements that are NaN or infinite on one side and not on the other, or infinite apart."""


def refusal(difference: Difference, tolerance: float) -> str | None:
    """Why the kernel's output is not what vLLM computes, or None when it is."""
    if difference.non_finite:
        return f"{difference.non_finite} elements are NaN or Inf on one side only"
    if not difference.relative <= tolerance:
        return f"relative error {difference.relative:.3g} above {tolerance:.3g}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCheck:
    """All checked calls of one kernel in one layer and process."""

    process: int
    nonce: str
    kernel: str
    layer: str
    """As vLLM names it, e.g. ``model.layers.3.self_attn.attn``."""
    tolerance: float
    checked: int
    """Hits that vLLM's own path computed too."""
    failed: int
    """Of these, calls whose outputs differed; the request got vLLM's."""
    non_finite: int
    """Elements in all failed calls that were NaN or infinite on one side only."""
    worst_absolute: float
    worst_relative: float
    worst_query_len: int
    """Query tokens of the call with the worst relative error."""
    worst_context_len: int
