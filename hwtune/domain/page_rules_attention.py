"""Bytes that one token takes in one attention layer's KV cache on one rank."""

from __future__ import annotations

from dataclasses import replace
from math import lcm

from hwtune.domain.deployment import Deployment
from hwtune.domain.errors import InputError
from hwtune.domain.model import ITEM_BYTES, AttentionShape, CheckpointKv, ModelShape
from hwtune.domain.page_rules_backends import BackendSizes, packs
from hwtune.domain.page_rules_versions import (
    MLA_COUNTED_TWICE,
    RULE_IN_PLATFORM,
    TURBOQUANT_REFUSED,
    Rule,
    Version,
)
from hwtune.domain.page_steps import EngineRefusalError, Trace
from hwtune.domain.units import ceil_div

_DTYPE_NAMES = {
    "half": "float16",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float": "float32",
    "float32": "float32",
}
_ONE_BYTE = ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "nvfp4_ds_mla")
_TURBOQUANT_BITS = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}
_PACKED = (
    "int8_per_token_head",
    "fp8_per_token_head",
    "int4_per_token_head",
    "nvfp4",
    "nvfp4_4over6",
    "ultraquant_4bit",
)
_LATER: tuple[tuple[tuple[str, ...], Version], ...] = (
    (("int8_per_token_head", "fp8_per_token_head", "nvfp4"), (0, 19, 0)),
    (("int4_per_token_head", "nvfp4_4over6"), (0, 24, 0)),
    (("nvfp4_ds_mla", "ultraquant_4bit"), (0, 29, 0)),
)
"""(KV-cache dtypes, first release that may have them): 0.18.1, 0.23.0 and 0.28.0 do not."""
KV_CACHE_DTYPES = ("auto", "float16", "bfloat16", *_ONE_BYTE, *_PACKED, *_TURBOQUANT_BITS)
"""What --kv-cache-dtype takes (config/cache.py CacheDType)."""
_SOURCE = "v1/kv_cache_interface.py FullAttentionSpec.page_size_bytes"


def model_dtype(model: ModelShape, deployment: Deployment) -> str:
    """The dtype the model runs in.

    A float32 checkpoint runs in bfloat16 unless --dtype says otherwise (vLLM config/model.py
    _get_and_verify_dtype).

    Raises:
        InputError: the config names no dtype and --dtype is auto, or --dtype is unknown.
    """
    if deployment.dtype == "auto":
        if not model.dtype:
            message = f"{model.source}: key 'dtype' (or 'torch_dtype') is missing; give --dtype"
            raise InputError(message)
        return "bfloat16" if model.dtype == "float32" else model.dtype
    resolved = _DTYPE_NAMES.get(deployment.dtype)
    if resolved is None:
        message = f"--dtype {deployment.dtype}: expected auto or one of {', '.join(_DTYPE_NAMES)}"
        raise InputError(message)
    return resolved


def kv_dtype(model: ModelShape, deployment: Deployment, rule: Rule) -> str:
    """The KV-cache dtype after ``auto`` is resolved: a torch dtype name or a packed format.

    What only the layers of a checkpoint declare is unknown to a rule that runs before they are
    built.

    Raises:
        InputError: --kv-cache-dtype is unknown.
    """
    wanted = deployment.kv_cache_dtype
    if wanted not in KV_CACHE_DTYPES:
        message = f"--kv-cache-dtype {wanted}: expected one of {', '.join(KV_CACHE_DTYPES)}"
        raise InputError(message)
    _check_release(wanted, rule)
    if wanted == "auto":
        declared = model.checkpoint_kv
        known = declared is not None and _known_to_rule(declared, model, deployment, rule)
        return declared.dtype if declared and known else model_dtype(model, deployment)
    return wanted


def _check_release(wanted: str, rule: Rule) -> None:
    since = next((since for names, since in _LATER if wanted in names), None)
    if since is not None and rule.version < since:
        message = f"cache_dtype: {rule.name} does not have {wanted} yet"
        raise EngineRefusalError(message, error_class="ValidationError")


def _known_to_rule(
    declared: CheckpointKv, model: ModelShape, deployment: Deployment, rule: Rule
) -> bool:
    if not declared.by_layers:
        return True
    loaded = deployment.engine == "vllm" and RULE_IN_PLATFORM.holds(rule.version)
    return not model.attention.is_mla and (loaded or model.recurrent is None)


def kv_heads_per_rank(attention: AttentionShape, tensor_parallel_size: int) -> int:
    """KV heads on one rank; heads are replicated when there are fewer than ranks."""
    return max(1, attention.num_kv_heads // tensor_parallel_size)


def check_heads(model: ModelShape, deployment: Deployment) -> None:
    """Raises EngineRefusalError when the query heads do not divide by the TP size."""
    heads, ranks = model.attention.num_heads, deployment.tensor_parallel_size
    if heads % ranks:
        message = (
            f"Total number of attention heads ({heads}) must be divisible by tensor parallel size "
            f"({ranks})."
        )
        raise EngineRefusalError(message, error_class="ValidationError")


def check_quantised_dtype(model: ModelShape, deployment: Deployment) -> None:
    """Raises EngineRefusalError for a dtype that the checkpoint's quantisation cannot run in.

    Source: config/vllm.py VllmConfig._get_quantization_config.
    """
    quantised = model.quantised
    if quantised is None or not (deployment.dtype != "auto" or model.dtype):
        return
    dtype = model_dtype(model, deployment)
    if dtype not in quantised.dtypes:
        listed = ", ".join(f"torch.{name}" for name in quantised.dtypes)
        message = (
            f"torch.{dtype} is not supported for quantization method {quantised.method}. "
            f"Supported dtypes: [{listed}]"
        )
        raise EngineRefusalError(message, error_class="ValidationError")


def check_turboquant(model: ModelShape, deployment: Deployment, rule: Rule) -> None:
    """Raises EngineRefusalError where vLLM refuses TurboQuant for a hybrid model."""
    if deployment.kv_cache_dtype not in _TURBOQUANT_BITS:
        return
    if TURBOQUANT_REFUSED.holds(rule.version):
        message = (
            "TurboQuant KV cache is not supported for hybrid (attention + Mamba) models. Boundary "
            "layer protection requires uniform attention layers."
        )
        raise EngineRefusalError(message, error_class="NotImplementedError")
    if not model.attention.identifiable:
        message = (
            "TurboQuant KV cache requires identifiable full-attention layers, but none were found "
            "in the hybrid model config."
        )
        raise EngineRefusalError(message, error_class="NotImplementedError")


def bytes_per_token(
    model: ModelShape,
    deployment: Deployment,
    rule: Rule,
    trace: Trace,
    backend: BackendSizes | None = None,
) -> int:
    """Bytes of one token in one attention layer on one rank, as the page rule counts them.

    Args:
        backend: the first attention backend, whose layout counts; None: one that fits the dtype.

    Raises:
        InputError: a dtype is unknown or missing.
        EngineRefusalError: the format does not exist for the model's attention.
    """
    kind = kv_dtype(model, deployment, rule)
    attention = model.attention
    heads = kv_heads_per_rank(attention, deployment.tensor_parallel_size)
    if attention.is_mla:
        value = _mla_bytes(attention, kind)
        formula = "latent size x bytes (MLA: one vector, never divided by TP)"
        if MLA_COUNTED_TWICE.holds(rule.version):
            value, formula = 2 * value, f"2 x {formula}: this release counts K and V"
    elif _is_plain(kind) or not (_own_packing(kind) or packs(backend, kind, rule.version)):
        value = 2 * heads * attention.head_size * _item_bytes(kind)
        formula = "2 (K and V) x KV heads per rank x head size x bytes"
    else:
        value = _packed_bytes(kind, heads, attention.head_size)
        formula = f"KV heads per rank x packed slot of {kind}"
    if deployment.kv_cache_dtype == "auto" and model.checkpoint_kv:
        _note_checkpoint(model.checkpoint_kv, kind, trace)
    if kind in _TURBOQUANT_BITS and deployment.kv_cache_dtype_skip_layers:
        plain = 2 * heads * attention.head_size * ITEM_BYTES[model_dtype(model, deployment)]
        value = lcm(value, plain)
        formula = f"lcm(packed {kind}, unquantised)"
    return trace.add(
        "attention bytes per token",
        formula,
        {"KV heads per rank": heads, "head size": attention.head_size, "KV dtype": kind},
        value,
        "B",
        rule.source_of(_SOURCE),
    )


def _is_plain(kind: str) -> bool:
    return kind in ITEM_BYTES or kind in _ONE_BYTE


def _own_packing(kind: str) -> bool:
    """TurboQuant and UltraQuant are packed by their own backends, whichever comes first."""
    return kind in _TURBOQUANT_BITS or kind == "ultraquant_4bit"


def quantised_bytes_per_token(
    model: ModelShape, deployment: Deployment, rule: Rule, backend: BackendSizes | None
) -> int:
    """Bytes of one token in a quantised layer beside unquantised ones, in the first backend's
    layout; K and V count for MLA too."""
    kind = kv_dtype(model, deployment, rule)
    if not (_is_plain(kind) or packs(backend, kind, rule.version)):
        heads = kv_heads_per_rank(model.attention, deployment.tensor_parallel_size)
        return 2 * heads * model.attention.head_size
    plain = replace(deployment, kv_cache_dtype_skip_layers=())
    token = bytes_per_token(model, plain, rule, Trace(), backend)
    return 2 * token if model.attention.is_mla else token


def _note_checkpoint(declared: CheckpointKv, kind: str, trace: Trace) -> None:
    if kind == declared.dtype:
        trace.note(f"--kv-cache-dtype auto is {kind}: the checkpoint declares it")
    elif declared.by_layers:
        trace.note(
            f"the checkpoint declares a KV cache in {declared.dtype}, which this rule does not see: "
            "it runs before the layers are built, or the layers (MLA) do not take it up"
        )


def skip_layers(model: ModelShape, deployment: Deployment, *, hybrid: bool) -> tuple[str, ...]:
    """Layers whose KV cache stays unquantised: the user's, and TurboQuant's boundary layers.

    Source: model_executor/layers/quantization/turboquant/config.py get_boundary_skip_layers: the
    first and last two layers of a model that is not hybrid.
    """
    asked = deployment.kv_cache_dtype_skip_layers
    if hybrid or deployment.kv_cache_dtype not in _TURBOQUANT_BITS:
        return asked
    count = model.num_hidden_layers or 0
    near = [*range(min(2, count)), *range(max(count - 2, 0), count)]
    return tuple(dict.fromkeys((*asked, *map(str, near))))


def unquantised_bytes_per_token(model: ModelShape, deployment: Deployment) -> int:
    """Bytes of one token in a layer that keeps the model's dtype."""
    heads = kv_heads_per_rank(model.attention, deployment.tensor_parallel_size)
    return 2 * heads * model.attention.head_size * ITEM_BYTES[model_dtype(model, deployment)]


def _item_bytes(kind: str) -> int:
    return ITEM_BYTES.get(kind, 1)


def _mla_bytes(attention: AttentionShape, kind: str) -> int:
    """The rule counts a byte per element for whatever is quantised (MLAAttentionSpec)."""
    if kind in ("nvfp4", "nvfp4_4over6"):
        message = (
            "nvfp4 KV cache is not supported with MLA (Multi-head Latent Attention) backends. "
            "Please use a different --kv-cache-dtype"
        )
        raise EngineRefusalError(message, error_class="ValidationError")
    return attention.head_size * _item_bytes(kind)


def _packed_bytes(kind: str, heads: int, head_size: int) -> int:
    """Bytes of a packed layout: v1/attention/backends/{triton,turboquant,ultraquant}_attn.py."""
    if kind in _TURBOQUANT_BITS:
        return heads * _turboquant_slot(head_size, *_TURBOQUANT_BITS[kind])
    if kind == "int4_per_token_head":
        return heads * (2 * (head_size // 2) + 8)
    if kind.startswith("nvfp4"):
        return heads * 2 * (head_size // 2 + head_size // 16)
    if kind == "ultraquant_4bit":
        return heads * (head_size + 2 * (head_size // 32))
    return heads * (2 * head_size + 8)


def _turboquant_slot(head_size: int, key_bits: int, value_bits: int) -> int:
    key = head_size if key_bits == 8 else ceil_div(head_size * key_bits, 8) + 2
    slot = key + ceil_div(head_size * value_bits, 8) + 4
    return slot + slot % 2
