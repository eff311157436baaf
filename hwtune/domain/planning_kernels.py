"""Which of a profile's kernels a server must hit, and why it cannot hit the others."""

from __future__ import annotations

from collections.abc import Callable

from hwtune.domain.deployment import Deployment
from hwtune.domain.hardware import HardwareProfile
from hwtune.domain.kernel import KernelSpec, LayerTraits, static_refusal
from hwtune.domain.model import ModelShape
from hwtune.domain.page import PageDerivation

PROBE_OUTPUT_TOKENS = 4
"""Tokens that the start-up probe asks for: each but the first is a call of a decode kernel."""

_DTYPES = {"half": "float16", "float": "float32"}
"""vLLM's other names of dtypes (config/model.py)."""


def usable_kernels(
    profile: HardwareProfile,
    shape: ModelShape,
    deployment: Deployment,
    page: PageDerivation,
    available: Callable[[str], bool],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the kernels that must be hit, and a note for each that cannot be."""
    usable, notes = [], []
    layer = layer_traits(shape, deployment, page)
    for spec in profile.kernels:
        reason = _never(spec, layer, available) or _never_called(spec, shape, deployment)
        if reason is None:
            usable.append(spec.name)
        else:
            notes.append(f"kernel {spec.name} will not run: {reason}")
    return tuple(usable), tuple(notes)


def _never(spec: KernelSpec, layer: LayerTraits, available: Callable[[str], bool]) -> str | None:
    if not available(spec.implementation):
        if ":" in spec.implementation:
            return f"{spec.implementation} cannot be imported (install it, or set PYTHONPATH)"
        return f"implementation {spec.implementation} is not part of this hwtune"
    package = spec.provider.partition(":")[0].partition(".")[0]
    if package and not available(f"{package}:"):
        return f"its provider {spec.provider} cannot be imported (install {package})"
    return static_refusal(spec.when, layer)


def _never_called(spec: KernelSpec, shape: ModelShape, deployment: Deployment) -> str | None:
    """Why no request of this deployment can have the shape that the kernel takes."""
    longest = deployment.max_model_len or shape.max_model_len
    needed = max(spec.when.min_context_len, spec.when.min_query_len)
    if longest is not None and longest < needed + PROBE_OUTPUT_TOKENS:
        return (
            f"it takes {needed} tokens or more, the longest sequence has {longest}, answer included"
        )
    budget = deployment.max_num_batched_tokens
    if budget is not None and budget < spec.when.min_query_len:
        return (
            f"it takes {spec.when.min_query_len} query tokens or more, "
            f"--max-num-batched-tokens allows {budget}"
        )
    return None


def layer_traits(shape: ModelShape, deployment: Deployment, page: PageDerivation) -> LayerTraits:
    """The full-attention layers as one rank will build them."""
    ranks = deployment.tensor_parallel_size
    attention = shape.attention
    dtype = shape.dtype if deployment.dtype == "auto" else deployment.dtype
    return LayerTraits(
        num_heads=attention.num_heads // ranks,
        num_kv_heads=max(1, attention.num_kv_heads // ranks),
        head_size=attention.head_size,
        dtype=_DTYPES.get(dtype, dtype),
        kv_cache_dtype=deployment.kv_cache_dtype,
        block_size=page.block_size_tokens,
    )
