"""How a model is deployed: everything about the engine that moves the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EngineName = Literal["vllm", "vllm-ascend"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Knobs of one deployment, named after vLLM's flags."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    dtype: str = "auto"
    """--dtype; ``auto`` is the checkpoint's dtype (float32 checkpoints run as bfloat16)."""
    kv_cache_dtype: str = "auto"
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    enable_prefix_caching: bool | None = None
    """None: vLLM's own default for the version."""
    mamba_cache_mode: str | None = None
    """none, align or all; None: vLLM's own choice."""
    mamba_block_size: int | None = None
    block_size: int | None = None
    """The user's --block-size in tokens."""
    num_speculative_tokens: int = 0
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    engine: EngineName = "vllm"
    version: str | None = None
    """vLLM (or vllm-ascend) version; None: the newest whose rule is known."""
