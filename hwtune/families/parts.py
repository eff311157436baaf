"""What every family reads the same way: attention heads and layer counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hwtune.domain.model import AttentionShape
from hwtune.domain.page_rules_versions import Version
from hwtune.domain.page_steps import EngineRefusalError
from hwtune.families.reader import ConfigReader

_KV_HEAD_KEYS = (
    "n_head_kv",
    "num_kv_heads",
    "num_key_value_heads",
    "multi_query_group_num",
    "num_attention_groups",
)
_HEAD_KEYS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
_HIDDEN_KEYS = ("hidden_size", "n_embd", "d_model", "dim")
_LENGTH_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchitectureInfo:
    """What vLLM's registry says of an architecture, apart from its shapes."""

    first: Version | None = None
    last: Version | None = None
    transformers_since: Version | None = None
    pipeline_refusal: str | None = None


NO_PIPELINE = (
    "Pipeline parallelism is not supported for this model. Supported models implement the "
    "`SupportsPP` interface."
)


def divide(value: int, ranks: int) -> int:
    """``value / ranks``, exact.

    Raises:
        EngineRefusalError: it leaves a remainder (vLLM's ``divide`` asserts).
    """
    if value % ranks:
        message = f"{value} is not divisible by {ranks}"
        raise EngineRefusalError(message, error_class="AssertionError")
    return value // ranks


def read_attention(
    reader: ConfigReader,
    *,
    head_keys: tuple[str, ...] = ("head_dim", "hidden_size_per_head"),
    default_head_size: int | None = None,
    identifiable: bool = True,
    layers: int | None = None,
) -> AttentionShape:
    """The attention layers.

    Source: config/model.py ModelConfig.get_total_num_kv_heads and get_head_size.
    """
    heads = reader.integer("number of attention heads", *_HEAD_KEYS)
    if reader.has("kv_lora_rank"):
        return _mla(reader, heads, identifiable, layers)
    kv_heads = reader.optional("number of KV heads", *_KV_HEAD_KEYS) or heads
    size = reader.optional("head size", *head_keys, minimum=0) or default_head_size
    if not size:
        hidden = reader.integer("hidden size", *_HIDDEN_KEYS)
        size = hidden // heads
        reader.keys["head size"] = "hidden_size // num_attention_heads"
    if size < 1:
        raise reader.fail(head_keys[0], "gives a head size of 0")
    return AttentionShape(
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=size,
        identifiable=identifiable,
        sliding_window=reader.optional("sliding window", "sliding_window"),
    )


def _mla(
    reader: ConfigReader, heads: int, identifiable: bool, layers: int | None
) -> AttentionShape:
    latent = reader.integer("MLA latent size", "kv_lora_rank")
    rope = reader.integer("MLA rotary size", "qk_rope_head_dim", minimum=0)
    return AttentionShape(
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=1,
        head_size=latent + rope,
        is_mla=True,
        kv_lora_rank=latent,
        identifiable=identifiable,
    )


def count_layers(reader: ConfigReader) -> tuple[int | None, int | None]:
    """(attention layers, recurrent layers), or None where the config does not say."""
    total = reader.optional("number of layers", "num_hidden_layers", "n_layer", "num_layers")
    words = reader.words("layer_types") or reader.words("layers_block_type")
    if words is not None:
        return _count_words(words)
    pattern = reader.raw("hybrid_override_pattern")
    if isinstance(pattern, str):
        return pattern.count("*"), pattern.count("M")
    return _count_by_index(reader, total)


def _count_words(words: tuple[str, ...]) -> tuple[int, int]:
    attention = sum(map(_attends, words))
    plain = sum(word in ("moe", "mlp", "-", "E") for word in words)
    both = sum(word == "hybrid" for word in words)
    return attention, len(words) - attention - plain + both


def _attends(word: str) -> bool:
    """Whether a layer of that name has a KV cache; there are many kinds of attention by now."""
    return word in ("hybrid", "*") or (word.endswith("attention") and "linear" not in word)


def _count_by_index(reader: ConfigReader, total: int | None) -> tuple[int | None, int | None]:
    kinds = reader.numbers("attn_type_list")
    if kinds is not None:
        return sum(kind == 1 for kind in kinds), sum(kind == 0 for kind in kinds)
    for key in ("attn_layer_indices", "full_attn_idxs", "linear_attn_config.full_attn_layers"):
        indices = reader.numbers(key)
        if indices is not None and total is not None:
            return len(indices), total - len(indices)
    period = reader.optional("attention period", "attn_layer_period", "full_attention_interval")
    if period is None or total is None:
        return None, None
    offset = reader.optional("attention offset", "attn_layer_offset", minimum=0)
    first = period - 1 if offset is None else offset
    attention = sum(index % period == first for index in range(min(total, 100_000)))
    return attention, total - attention


def read_max_model_len(reader: ConfigReader) -> int | None:
    """The longest context in tokens: the smallest that a key declares, or model_max_length.

    Source: transformers_utils/model_arch_config_convertor.py derive_max_model_len_and_key.
    """
    name = "maximum model length"
    own = reader.optional(name, "model_max_length")
    found = {key: reader.optional(name, key) for key in _LENGTH_KEYS if reader.has(key)}
    smallest = min(found, key=lambda key: found[key] or 0, default=None)
    return own or (reader.optional(name, smallest) if smallest else None)


def attention_only(reader: ConfigReader) -> Literal["", "attention", "full_attention"]:
    """Which words a top-level layer_types uses when it names attention layers only."""
    words = set(reader.words("layer_types", top_level=True) or ())
    if words == {"attention"}:
        return "attention"
    return "full_attention" if words and words <= {"attention", "full_attention"} else ""
