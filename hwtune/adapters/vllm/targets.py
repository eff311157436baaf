"""What of vLLM hwtune touches, and in which releases it was found there.

One list for all uses: the plugin probes a backend's targets before it changes anything,
``scripts/compat.py --probe-only`` and the tests probe whole releases. A target is looked up in
vLLM's sources, so that a fork or a release that nobody here has seen is judged by what it is, not
by its version number.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One thing in vLLM's sources."""

    module: str
    name: str = ""
    """Dotted name inside the module; empty means the module itself."""
    parameters: tuple[str, ...] = ()
    """What a function takes first, in this order; self and cls left out."""
    members: tuple[str, ...] = ()
    """What a class declares or a method of it assigns to self."""
    values: tuple[tuple[str, object], ...] = ()
    """Class attributes that must be assigned exactly this literal."""

    def __str__(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A set of targets that fit together or not at all."""

    name: str
    targets: tuple[Target, ...]
    found_in: str
    """Releases whose sources have every target; a newer one is probed all the same."""
    tested_on: tuple[str, ...]
    """Releases on which it has really run."""
    until: str
    """When it can go."""


_BACKEND = "vllm.v1.attention.backend"
_REGISTRY = "vllm.v1.attention.backends.registry"
_CPU = "vllm.v1.attention.backends.cpu_attn"
_TRITON = "vllm.v1.attention.backends.triton_attn"
_FORWARD = ("layer", "query", "key", "value", "kv_cache", "attn_metadata", "output")
_CALL = ("num_actual_tokens", "max_query_len", "max_seq_len", "seq_lens", "block_table")
_LAYER = (
    *("num_heads", "num_kv_heads", "head_size", "scale", "kv_cache_dtype", "attn_type"),
    *("sliding_window", "alibi_slopes", "logits_soft_cap", "kv_sharing_target_layer_name"),
)

_COMMON = (
    Target(module="vllm.logger", name="init_logger", parameters=("name",)),
    Target(module="vllm.plugins", name="load_general_plugins"),
    Target(module=_REGISTRY, name="register_backend", parameters=("backend", "class_path")),
    Target(module=_BACKEND, name="MultipleOf"),
    Target(module=_BACKEND, name="AttentionType", members=("DECODER",)),
    Target(module=_BACKEND, name="AttentionBackend.get_supported_kernel_block_sizes"),
    Target(
        module=_BACKEND, name="AttentionBackend.supports_block_size", parameters=("block_size",)
    ),
)

CPU = Patch(
    name="CPU_ATTN",
    targets=(
        *_COMMON,
        Target(
            module=_REGISTRY,
            name="AttentionBackendEnum",
            members=("CPU_ATTN", "get_class", "get_path"),
        ),
        Target(module=_CPU, name="CPUAttentionBackend.get_impl_cls"),
        Target(module=_CPU, name="CPUAttentionBackendImpl", members=_LAYER),
        Target(module=_CPU, name="CPUAttentionBackendImpl.forward", parameters=_FORWARD),
        Target(
            module=_CPU, name="CPUAttentionMetadata", members=(*_CALL, "slot_mapping", "causal")
        ),
        Target(
            module="vllm._custom_ops",
            name="cpu_attn_reshape_and_cache",
            parameters=("key", "value", "key_cache", "value_cache", "slot_mapping", "isa"),
        ),
    ),
    found_in="0.15.1-0.32.0",
    tested_on=("0.18.1", "0.23.0", "0.28.0", "0.32.0"),
    until="vLLM lets a user state a page alignment and a kernel per shape",
)

TRITON = Patch(
    name="TRITON_ATTN",
    targets=(
        *_COMMON,
        Target(
            module=_REGISTRY,
            name="AttentionBackendEnum",
            members=("TRITON_ATTN", "CUSTOM", "get_class", "get_path"),
        ),
        Target(
            module=_BACKEND, name="AttentionCGSupport", members=("UNIFORM_SINGLE_TOKEN_DECODE",)
        ),
        Target(
            module=_TRITON,
            name="TritonAttentionBackend",
            members=("get_impl_cls", "get_builder_cls"),
            values=(("forward_includes_kv_cache_update", False),),
        ),
        Target(module=_TRITON, name="TritonAttentionImpl", members=_LAYER),
        Target(module=_TRITON, name="TritonAttentionImpl.forward", parameters=_FORWARD),
        Target(module=_TRITON, name="TritonAttentionMetadata", members=_CALL),
        Target(
            module=_TRITON, name="TritonAttentionMetadataBuilder", members=("_cudagraph_support",)
        ),
    ),
    found_in="0.17.1-0.32.0",
    tested_on=(),
    until="vLLM lets a user state a page alignment and a kernel per shape",
)

LAUNCH = Patch(
    name="launch",
    targets=(
        Target(module="vllm._version"),
        Target(module="vllm.entrypoints.openai.api_server"),
        Target(module="vllm.entrypoints.cli.main", name="main"),
        Target(module="vllm.envs", name="environment_variables"),
        Target(module="vllm.plugins", name="DEFAULT_PLUGINS_GROUP"),
        Target(module="vllm.ray.ray_env", name="get_env_vars_to_copy"),
    ),
    found_in="0.18.0-0.32.0",
    tested_on=("0.18.1", "0.23.0", "0.28.0", "0.32.0"),
    until="never: how a server is found and started",
)

BACKEND_PATCHES = {patch.name: patch for patch in (CPU, TRITON)}
"""vLLM's backend that a profile extends -> what extending it touches."""
PATCHES = (*BACKEND_PATCHES.values(), LAUNCH)
