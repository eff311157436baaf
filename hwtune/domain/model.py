"""What a model's cache looks like, independent of the deployment.

Sizes are totals over all tensor-parallel ranks; the page rules divide them. Terms follow vLLM: a
*state tensor* is one tensor of a recurrent layer's cache (conv state, SSM state).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Literal

from hwtune.domain.page_rules_versions import Version

StateKind = Literal["conv", "ssm", "ring"]

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}
"""Bytes per element of the dtypes that cache tensors have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTensor:
    """One tensor of one recurrent layer's state on one tensor-parallel rank."""

    kind: StateKind
    """Which dtype rule applies: ``conv`` follows --mamba-cache-dtype, ``ssm`` its own rule."""
    shape: tuple[int, ...]
    """Elements per dimension on one rank."""
    dtype: str
    """torch dtype name without the prefix, e.g. ``float32``."""
    formula: str
    """How the shape came about, for people."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor."""
        return self.elements * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRequest:
    """What a state's shapes and dtypes depend on, resolved from a deployment."""

    tensor_parallel_size: int
    num_speculative_tokens: int
    model_dtype: str
    conv_dtype: str
    ssm_dtype: str
    version: Version
    """The release whose shapes are asked for."""
    use_replayssm: bool = False
    replayssm_buffer_len: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """The full-attention layers."""

    num_layers: int | None
    """Number of attention layers; None when the config does not say which layers they are."""
    num_heads: int
    num_kv_heads: int
    """KV heads over all ranks; 1 for MLA."""
    head_size: int
    """Elements per head; for MLA kv_lora_rank + qk_rope_head_dim."""
    is_mla: bool = False
    kv_lora_rank: int | None = None
    """MLA only: elements of the latent part."""
    identifiable: bool = True
    """Whether vLLM finds the full-attention layers by name (TurboQuant needs that)."""
    sliding_window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentShape:
    """The recurrent (GDN, Mamba, KDA, short-convolution) layers."""

    num_layers: int | None
    kind: str
    """``gdn``, ``mamba1``, ``mamba2``, ``kda``, ``short_conv`` or ``linear_attention``."""
    state_tensors: Callable[[StateRequest], tuple[StateTensor, ...]]
    """Per layer and rank. Raises InfeasibleError when a dimension does not divide by the
    tensor-parallel size."""
    ssm_dtype_defaults: tuple[tuple[Version, str | None], ...] = ()
    """(first release, dtype of the SSM state when --mamba-ssm-cache-dtype is auto), ascending;
    None or nothing: the conv state's dtype."""
    allowed_ssm_dtypes: tuple[str, ...] = ()
    """Values of --mamba-ssm-cache-dtype the family accepts; empty accepts all."""
    ssm_dtype_since: Version = (0, 0, 0)
    """First release whose class looks at --mamba-ssm-cache-dtype at all."""
    supports_replayssm: bool = False
    """Whether the class is on vLLM's list for --use-replayssm (whose rings only Mamba2 layers have)."""
    supports_all_mode: bool = False
    """Whether the class is on vLLM's list for mamba cache mode ``all``."""
    chunk_size: int | None = None
    """The config's mamba_chunk_size or chunk_size, used by mode ``all``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedDtypes:
    """The dtypes that a quantised checkpoint can run in."""

    method: str
    """vLLM's name of the quantisation."""
    dtypes: tuple[str, ...]
    """torch dtype names without the prefix, in vLLM's order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointKv:
    """The KV-cache dtype that a quantised checkpoint declares."""

    dtype: str
    """As --kv-cache-dtype would say it (``fp8``)."""
    by_layers: bool = False
    """Only the attention layers (not MLA's) take it up, when they are built (compressed-tensors)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What the page rule needs to know of a model."""

    architecture: str
    family: str
    dtype: str
    """The checkpoint's dtype (``bfloat16``, ``float16``, ``float32``); empty when the config
    does not say."""
    attention: AttentionShape
    recurrent: RecurrentShape | None
    """None for a model that is not hybrid."""
    max_model_len: int | None
    source: str
    """Where the config was read from."""
    keys: dict[str, str] = field(default_factory=dict)
    """Which config key gave which value, e.g. ``{"num_kv_heads": "text_config.num_key_value_heads"}``."""
    attention_only: Literal["", "attention", "full_attention"] = ""
    """When the config's top-level layer_types names only attention layers: which words it uses."""
    checkpoint_kv: CheckpointKv | None = None
    """What the checkpoint's quantisation says of the KV cache."""
    quantised: QuantisedDtypes | None = None
    """What --dtype may be; None: anything, or not known."""
    first_version: Version | None = None
    """First vLLM release with the architecture."""
    last_version: Version | None = None
    """Last vLLM release with the architecture; None: still there."""
    transformers_since: Version | None = None
    """First release that runs a removed architecture on the Transformers backend; those between,
    and without one all later ones, refuse it."""
    pipeline_refusal: str | None = None
    """vLLM's message when the model is asked for pipeline parallelism."""
    mtp_layers: int = 0
    """Draft (multi-token prediction) layers in the checkpoint."""
    num_hidden_layers: int | None = None
