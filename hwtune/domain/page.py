"""The KV-cache page ("block") size that vLLM derives for a hybrid model."""

from __future__ import annotations

from dataclasses import dataclass

from hwtune.domain.deployment import Deployment
from hwtune.domain.model import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivationStep:
    """One step of the derivation: the table people read is printed from these."""

    name: str
    rule: str
    """Formula in words or symbols."""
    inputs: dict[str, str | int | float]
    value: str | int | float
    unit: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PageDerivation:
    """The page vLLM will choose, with every step that led to it."""

    model: ModelShape
    deployment: Deployment
    rule: str
    """Name of the rule generation, e.g. ``vllm-0.32``."""
    alignment_tokens: int
    block_size_tokens: int
    """The attention page in tokens."""
    attention_bytes_per_token: int
    """Per layer and rank."""
    attention_page_bytes: int
    state_bytes: int | None
    """Recurrent state per layer and rank before padding; None when not hybrid."""
    padding_bytes: int
    padding_pct: float | None
    """As vLLM prints it: 100 * (page - state) / state; None when nothing is padded."""
    mamba_block_size: int | None
    mamba_cache_mode: str | None
    enable_prefix_caching: bool | None
    steps: tuple[DerivationStep, ...]
    notes: tuple[str, ...] = ()
