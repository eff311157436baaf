"""vLLM's line ``Initializing a V1 LLM engine … with config: a=1, b={…}`` -> one text per field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

_FACTS = frozenset(
    {
        "model",
        "dtype",
        "kv_cache_dtype",
        "tensor_parallel_size",
        "max_seq_len",
        "enforce_eager",
        "device_config",
        "enable_prefix_caching",
        "compilation_config.cudagraph_mode",
    }
)
"""Fields that are facts of their own (hwtune/markers/vllm.toml)."""
_NO_CONDITION = (
    "served_model_name",
    "tokenizer",
    "download_dir",
    "seed_generator",
    "compilation_config.cache_dir",
    "compilation_config.local_cache_dir",
    "compilation_config.traced_files",
    "compilation_config.debug_dump_path",
    "compilation_config.compile_cache_save_format",
    "compilation_config.enabled_custom_ops",
    "compilation_config.disabled_custom_ops",
    "observability_config",
)
"""Names and places that change nothing of how the engine runs, or that it fills in later."""
_NESTED = ("compilation_config", "compilation_config.pass_config")
"""Fields whose parts are compared one by one."""
_OPEN, _CLOSE, _QUOTES = "([{<", ")]}>", "'\""
_MAX_TEXT = 2_000


def engine_fields(text: str) -> Mapping[str, str]:
    """Fields and their text, the parts of ``compilation_config`` as ``compilation_config.x``.

    Source: vllm/config/vllm.py ``VllmConfig.__str__``; unknown fields are kept as they stand.
    """
    found = dict(_flat("", _pairs(text, "=")))
    return {
        name: value[:_MAX_TEXT]
        for name, value in found.items()
        if name not in _FACTS and name not in _NO_CONDITION
    }


def _flat(prefix: str, pairs: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for part, value in pairs:
        name = f"{prefix}{part}"
        if name in _NESTED and value.startswith("{"):
            yield from _flat(f"{name}.", _pairs(value[1:].removesuffix("}"), ":"))
        else:
            yield name, value


def _pairs(text: str, sign: str) -> Iterator[tuple[str, str]]:
    for item in _split(text):
        name, found, value = item.partition(sign)
        name = name.strip().strip(_QUOTES)
        if found and name.isidentifier():
            yield name, value.strip()


def _split(text: str) -> Iterator[str]:
    """At commas outside brackets and quotes."""
    depth, quote, start = 0, "", 0
    for position, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in _QUOTES:
            quote = char
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth = max(0, depth - 1)
        elif char == "," and depth == 0:
            yield text[start:position]
            start = position + 1
    yield text[start:]
