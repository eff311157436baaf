"""What a model's cache looks like, independent of the deployment.

Sizes are totals over all tensor-parallel ranks; ``hwtune.domain.page`` divides them. Terms follow
vLLM: a *state tensor* is one tensor of a recurrent layer's cache (conv state, SSM state).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from hwtune.domain.deployment import Deployment

StateKind = Literal["conv", "ssm"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentShape:
    """The recurrent (GDN, Mamba, KDA, short-convolution) layers."""

    num_layers: int | None
    kind: str
    """``gdn``, ``mamba1``, ``mamba2``, ``kda``, ``short_conv`` or ``linear_attention``."""
    state_tensors: Callable[[Deployment], tuple[StateTensor, ...]]
    """Per layer and rank, for a deployment (TP, draft tokens, dtypes). Raises InfeasibleError
    when a dimension does not divide by the tensor-parallel size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What the page rule needs to know of a model."""

    architecture: str
    family: str
    dtype: str
    """The checkpoint's dtype (``bfloat16``, ``float16``, ``float32``)."""
    attention: AttentionShape
    recurrent: RecurrentShape | None
    """None for a model that is not hybrid."""
    max_model_len: int | None
    source: str
    """Where the config was read from."""
    keys: dict[str, str] = field(default_factory=dict)
    """Which config key gave which value, e.g. ``{"num_kv_heads": "text_config.num_key_value_heads"}``."""
