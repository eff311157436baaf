"""How a model is deployed: everything about the engine that moves the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EngineName = Literal["vllm", "vllm-ascend"]
PlatformName = Literal["cuda", "rocm", "cpu", "xpu", "npu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Knobs of one deployment, named after vLLM's flags."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    dtype: str = "auto"
    """--dtype; ``auto`` is the checkpoint's dtype (float32 checkpoints run as bfloat16)."""
    kv_cache_dtype: str = "auto"
    kv_cache_dtype_skip_layers: tuple[str, ...] = ()
    """Layers whose KV cache stays in the model's dtype."""
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
    speculative_method: str | None = None
    """Method of --speculative-config, e.g. ``mtp`` or ``ngram``."""
    use_replayssm: bool = False
    replayssm_buffer_len: int = 16
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    gpu_memory_utilization: float | None = None
    attention_backend: str | None = None
    """--attention-backend, when the user names one."""
    platform: PlatformName = "cuda"
    """vLLM's platform; it decides the starting block size and extra rounding."""
    cpu_features: frozenset[str] = frozenset()
    """Instruction sets of the CPU that serves, as /proc/cpuinfo names them; empty: unknown."""
    ascend_310p: bool = False
    """The NPU is a 310P, where vllm-ascend keeps upstream's formula."""
    blackwell_sm10x: bool = False
    """The GPU has compute capability 10.x."""
    prefill_checkpoint_tokens: int | None = None
    """Alignment of the prefill checkpoints that every state layer declares, used in align mode
    since 0.33: 64 where GDN prefill runs on FlashInfer; None where a layer declares none."""
    state_dtypes_of: Literal["version", "newest"] = "version"
    """Whose defaults the recurrent state's dtypes follow: those of ``version``, or the newest
    release's (what a rule applied to today's model classes gives)."""
    engine: EngineName = "vllm"
    version: str | None = None
    """vLLM (or vllm-ascend) version; None: the newest whose rule is known."""
