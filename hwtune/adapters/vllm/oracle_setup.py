"""vLLM's configuration of a scenario: made without a model, with what this release has.

Loaded by ``oracle_child`` under the Python that has vLLM, so it imports nothing of hwtune.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import pickle
from collections.abc import Callable
from typing import Any

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "num_hidden_layers": 1,
    "max_position_embeddings": 1 << 30,
    "vocab_size": 32000,
    "torch_dtype": "float32",
}
"""The smallest model that vLLM accepts a configuration of."""


def known(call: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments that this release's function or dataclass takes."""
    if dataclasses.is_dataclass(call):
        names = {field.name for field in dataclasses.fields(call)}
        names |= set(inspect.signature(call).parameters)
    else:
        names = set(inspect.signature(call).parameters)
    return {name: value for name, value in arguments.items() if name in names}


def make(call: Callable[..., Any], **arguments: Any) -> Any:
    return call(**known(call, arguments))


def _put(target: Any, **values: Any) -> None:
    """Sets attributes that this release has; configurations fill some in on their own."""
    for name, value in values.items():
        if hasattr(target, name):
            object.__setattr__(target, name, value)


def _scheduler_config(config: dict[str, Any]) -> Any:
    from vllm.config import SchedulerConfig

    settings = {
        "max_num_batched_tokens": config["max_num_batched_tokens"],
        "max_num_seqs": config["max_num_seqs"],
        "max_num_scheduled_tokens": config.get("max_num_scheduled_tokens"),
        "max_num_active_seqs": config.get("max_num_active_seqs"),
        "enable_chunked_prefill": config.get("chunked_prefill", True),
        "long_prefill_token_threshold": config.get("long_prefill_token_threshold", 0),
        "long_prefill_token_threshold_adaptive": config.get("long_prefill_adaptive", False),
        "policy": config.get("policy", "fcfs"),
        "scheduler_reserve_full_isl": config.get("reserve_full_isl", True),
        "watermark": config.get("watermark", 0.0),
        "async_scheduling": config.get("async", False),
    }
    built = make(
        SchedulerConfig,
        max_model_len=config["max_model_len"],
        is_encoder_decoder=False,
        **settings,
    )
    _put(built, **settings)
    return built


def vllm_config(scenario: dict[str, Any], folder: str) -> Any:
    from vllm.config import CacheConfig, ModelConfig, VllmConfig

    config, kv = scenario["config"], scenario["kv"]
    model = make(
        ModelConfig,
        model=folder,
        tokenizer=folder,
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=config["max_model_len"],
        seed=0,
    )
    groups = kv["groups"]
    aligned = next((g for g in groups if g.get("mode") == "align"), None)
    cache = make(CacheConfig, block_size=16, enable_prefix_caching=False)
    built = make(VllmConfig, model_config=model, cache_config=cache)
    # The rest is set afterwards: what is asked here is the scheduler, not vLLM's own defaults.
    block = aligned["block_size"] if aligned else groups[0]["block_size"]
    _put(
        built.cache_config,
        block_size=block,
        enable_prefix_caching=config.get("prefix_caching", False),
        mamba_cache_mode="align" if aligned else "none",
        prefix_match_unit=kv.get("prefix_match_unit"),
        num_gpu_blocks=kv["num_blocks"],
    )
    _put(built, scheduler_config=_scheduler_config(config))
    _put(built.model_config, max_model_len=config["max_model_len"])
    if config.get("spec"):
        _put(built, speculative_config=_speculative_config(config["spec"], built))
    return built


def _speculative_config(spec: dict[str, Any], built: Any) -> Any:
    """Made as ngram, which needs no drafter, and renamed: the scheduler only asks for the name."""
    from vllm.config import SpeculativeConfig

    made = make(
        SpeculativeConfig,
        method="ngram",
        num_speculative_tokens=spec["k"],
        prompt_lookup_max=3,
        prompt_lookup_min=1,
        target_model_config=built.model_config,
        target_parallel_config=built.parallel_config,
    )
    _put(made, method=spec["method"])
    return made


def _group(group: dict[str, Any], drafts: int) -> Any:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec

    attention = {
        "block_size": group["block_size"],
        "num_kv_heads": 1,
        "head_size": 1,
        "dtype": torch.float32,
        "use_mla": False,
    }
    if group["type"] == "mamba":
        return make(
            MambaSpec,
            block_size=group["block_size"],
            shapes=((1, 1),),
            dtypes=(torch.float32,),
            mamba_cache_mode=group.get("mode", "none"),
            num_speculative_blocks=drafts,
        )
    if group["type"] == "sliding_window":
        return make(SlidingWindowSpec, sliding_window=group["window"], **attention)
    return make(FullAttentionSpec, **attention)


def cache_config(scenario: dict[str, Any]) -> Any:
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

    spec = scenario["config"].get("spec")
    drafts = spec["k"] if spec else 0
    return make(
        KVCacheConfig,
        num_blocks=scenario["kv"]["num_blocks"],
        kv_cache_tensors=[],
        kv_cache_groups=[
            make(KVCacheGroupSpec, layer_names=[f"layer{i}"], kv_cache_spec=_group(group, drafts))
            for i, group in enumerate(scenario["kv"]["groups"])
        ],
        prefix_cache_retention_interval=scenario["kv"].get("retention", 0),
    )


def block_sizes(scenario: dict[str, Any], cache: Any, config: Any) -> tuple[int, int]:
    """Scheduler block and hash block: asked of vLLM where it decides them."""
    try:
        from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
    except ImportError:
        size = config.cache_config.block_size
        return size, size
    scheduler_block, hash_block = resolve_kv_cache_block_sizes(cache, config)
    return scheduler_block, hash_block


class Prompts:
    """Token ids: equal where prompts share a prefix, and nowhere else."""

    def __init__(self) -> None:
        self._prefixes: dict[str, list[int]] = {}
        self._last = 0

    def next(self) -> int:
        """A token that never was before."""
        self._last += 1
        return self._last

    def tokens(self, request: dict[str, Any]) -> list[int]:
        """The prompt of a request."""
        shared: list[int] = []
        name, length = request.get("prefix_id"), request.get("prefix_len") or 0
        if name is not None:
            shared = self._prefixes.setdefault(name, [])
            while len(shared) < length:
                shared.append(self.next())
        prompt = shared[: min(length, request["prompt_len"])]
        return prompt + [self.next() for _ in range(request["prompt_len"] - len(prompt))]


def hash_of(value: Any) -> bytes:
    """Stands in for the hash of a block: vLLM's own choices want packages of their own."""
    return hashlib.sha256(pickle.dumps(value)).digest()
