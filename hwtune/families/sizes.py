"""Shapes of published sizes of the Qwen3.5 family, to recognise one by its page.

Source: the models' public config.json files (shape fields only).
"""

from __future__ import annotations

from typing import Any

from hwtune.domain.model import ModelShape
from hwtune.families import read_shape

_SIZES = {
    "Qwen3.5-0.8B/2B": (8, 2, 16, 16),
    "Qwen3.5-4B/9B": (16, 4, 16, 32),
    "Qwen3.5-27B": (24, 4, 16, 48),
    "Qwen3.5-35B-A3B": (16, 2, 16, 32),
    "Qwen3.5-122B-A10B/397B-A17B": (32, 2, 16, 64),
}
"""Name -> (attention heads, KV heads, GDN key heads, GDN value heads)."""


def known_sizes() -> tuple[tuple[str, ModelShape], ...]:
    """(name, shape) of every size."""
    return tuple((name, read_shape(_config(*heads), name)) for name, heads in _SIZES.items())


def _config(heads: int, kv_heads: int, key_heads: int, value_heads: int) -> dict[str, Any]:
    text = {
        "dtype": "bfloat16",
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 256,
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144,
    }
    return {"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": text}
