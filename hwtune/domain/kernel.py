"""When a specialised attention kernel may take a call: data, and one pure predicate.

The same predicate serves the plugin inside vLLM, the planner and the simulator, so that none of
them can disagree about what a kernel takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

OBSERVED_ONLY = "observed only"
"""Reason of a call that a kernel would have taken in the candidate; counted in the baseline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConditions:
    """What one call must look like. None means the kernel does not care."""

    min_query_len: int
    max_query_len: int
    """Inclusive, in tokens of the one sequence."""
    single_sequence: bool = True
    block_size_multiple_of: int = 1
    """The page must be a multiple of this many tokens."""
    min_context_len: int = 0
    """Tokens of KV the sequence must have, the new ones included."""
    dtypes: tuple[str, ...] = ()
    """Accepted dtypes of Q, K, V and output; empty accepts any."""
    kv_cache_dtypes: tuple[str, ...] = ("auto",)
    head_sizes: tuple[int, ...] = ()
    num_heads: int | None = None
    num_kv_heads: int | None = None
    gqa_ratios: tuple[int, ...] = ()
    sliding_window: bool = False
    """Whether the kernel also computes layers with a sliding window."""
    soft_cap: bool = False
    sinks: bool = False
    verification: bool = False
    """Whether the kernel also takes steps that verify draft tokens: decodes of a few tokens, which
    by their shape alone could be short prefills."""
    in_graphs: bool = False
    """Whether a captured call may be replayed for other lengths and other sequences: only if the
    kernel was chosen by what is the same in every replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedFor:
    """Launch constants that differ for some layers or pages."""

    source: str
    """How they were found, when, and where."""
    tuning: dict[str, int]
    """Laid over the kernel's ``tuning``."""
    head_sizes: tuple[int, ...] = ()
    """Empty matches any."""
    page_not_multiple_of: int | None = None
    """Matches pages that are no multiple of this: a tile never crosses a page, so the tile of page
    784 has 16 tokens whatever the profile asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSpec:
    """One specialised kernel of a hardware profile."""

    name: str
    """What markers and counters call it, e.g. ``vendor_prefill``."""
    implementation: str
    """Name in ``hwtune_kernels``' registry of implementations, e.g. ``prefill.cpu``, or the user's
    own ``package.module:name``."""
    when: KernelConditions
    source: str
    """Where the conditions come from."""
    tuning: dict[str, int] = field(default_factory=dict)
    """Launch constants of this device, found by tuning; empty leaves the kernel's defaults."""
    provider: str = ""
    """``package.module:function`` of the library that the implementation calls; empty takes the
    implementation's own."""
    tuned: tuple[TunedFor, ...] = ()


def tuning_for(spec: KernelSpec, head_size: int, block_size: int) -> dict[str, int]:
    """The launch constants for a layer: the kernel's, and over them all that match, in order."""
    tuning = dict(spec.tuning)
    for special in spec.tuned:
        if special.head_sizes and head_size not in special.head_sizes:
            continue
        multiple = special.page_not_multiple_of
        if multiple is None or block_size % multiple:
            tuning |= special.tuning
    return tuning


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTraits:
    """What is fixed about an attention layer when it is built."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    dtype: str
    kv_cache_dtype: str
    block_size: int
    """Tokens per page that the layer's KV cache really has."""
    decoder: bool = True
    sliding_window: bool = False
    alibi: bool = False
    soft_cap: bool = False
    sinks: bool = False
    kv_sharing: bool = False
    chunked: bool = False
    """Whether a window moves in chunks (``chunk_lookback``) instead of token by token."""
    unreadable_cache: str | None = None
    """Why the kernels cannot read this layer's cache; None when they can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallShape:
    """What one forward call of the layer looks like."""

    num_sequences: int
    num_tokens: int
    max_query_len: int
    context_len: int
    """Longest sequence in tokens, new tokens included."""
    causal: bool = True
    fused_output: bool = False
    """Whether the caller wants the output quantised in the same pass."""
    other_mask: str = ""
    """A mask besides causal and window that this call brings, e.g. ``multimodal prefix``."""
    capturing: bool = False
    """Whether a graph records the call instead of a device running it."""
    verification: bool = False
    """Whether the step verifies drafts and computes no prompt: see :func:`is_verification`."""


def is_verification(
    max_query_len: int, speculative_tokens: int, any_prefilling: bool | None
) -> bool:
    """Whether a step verifies drafts, by what vLLM's runner knows of it.

    Args:
        max_query_len: most tokens of any sequence in the step.
        speculative_tokens: K, the most drafts per sequence; 0 without speculative decoding.
        any_prefilling: whether a sequence still had prompt to compute before the step; None where
            vLLM does not say (before 0.23), and then every step of 2 to 1 + K tokens counts.

    Source: vLLM 0.32 v1/worker/gpu_model_runner.py, ``is_prefilling``.
    """
    return 1 < max_query_len <= 1 + speculative_tokens and not any_prefilling


def static_refusal(when: KernelConditions, layer: LayerTraits) -> str | None:
    """Why the kernel can never take this layer, or None when it can."""
    checks = (
        (not layer.decoder, "not decoder attention"),
        (layer.sliding_window and not when.sliding_window, "sliding window"),
        (layer.chunked, "chunked attention"),
        (layer.alibi, "ALiBi"),
        (layer.soft_cap and not when.soft_cap, "soft cap"),
        (layer.sinks and not when.sinks, "attention sinks"),
        (layer.kv_sharing, "KV sharing between layers"),
        (layer.unreadable_cache is not None, str(layer.unreadable_cache)),
        (
            bool(when.dtypes) and layer.dtype not in when.dtypes,
            f"dtype {layer.dtype}, not {_any_of(when.dtypes)}",
        ),
        (
            layer.kv_cache_dtype not in when.kv_cache_dtypes,
            f"KV dtype {layer.kv_cache_dtype}, not {_any_of(when.kv_cache_dtypes)}",
        ),
        (
            bool(when.head_sizes) and layer.head_size not in when.head_sizes,
            f"head size {layer.head_size}, not {_any_of(when.head_sizes)}",
        ),
        (
            when.num_heads not in (None, layer.num_heads),
            f"{layer.num_heads} query heads, not {when.num_heads}",
        ),
        (
            when.num_kv_heads not in (None, layer.num_kv_heads),
            f"{layer.num_kv_heads} KV heads, not {when.num_kv_heads}",
        ),
        (
            bool(when.gqa_ratios) and not _gqa_accepted(when.gqa_ratios, layer),
            f"GQA {layer.num_heads}/{layer.num_kv_heads}, not {_any_of(when.gqa_ratios)}",
        ),
        (
            layer.block_size % when.block_size_multiple_of != 0,
            f"page {layer.block_size} not a multiple of {when.block_size_multiple_of}",
        ),
    )
    return next((reason for refused, reason in checks if refused), None)


def _any_of(accepted: tuple[object, ...]) -> str:
    return " or ".join(map(str, accepted))


def _gqa_accepted(ratios: tuple[int, ...], layer: LayerTraits) -> bool:
    return any(layer.num_heads == ratio * layer.num_kv_heads for ratio in ratios)


def call_refusal(  # noqa: C901 - a flat list, and a table would cost each forward its tuples
    when: KernelConditions, call: CallShape
) -> str | None:
    """Why the kernel does not take this call, or None when it does.

    Reasons are short and few, because each is the key of a counter.
    """
    if when.single_sequence and call.num_sequences != 1:
        return "more than one sequence"
    if call.max_query_len < when.min_query_len:
        return f"query shorter than {when.min_query_len}"
    if call.max_query_len > when.max_query_len:
        return f"query longer than {when.max_query_len}"
    if when.single_sequence and call.max_query_len != call.num_tokens:
        return "padded or mixed batch"
    if call.verification and not when.verification:
        return "speculative verification"
    if call.context_len < when.min_context_len:
        return f"context shorter than {when.min_context_len}"
    if call.capturing and not when.in_graphs:
        return "graph capture"
    if call.other_mask:
        return call.other_mask
    if not call.causal:
        return "not causal"
    if call.fused_output:
        return "fused output quantisation"
    return None
