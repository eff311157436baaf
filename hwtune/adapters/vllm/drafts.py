"""Whether a step verifies draft tokens: what vLLM's configuration and metadata say of it.

Target: ``SpeculativeConfig.num_speculative_tokens``, and ``CommonAttentionMetadata.is_prefilling``,
which vLLM has from 0.23 on. Before that every step of 2 to 1 + K tokens counts as one.
"""

from __future__ import annotations

from typing import Any

_PREFILLING = "hwtune_any_prefilling"
"""Attribute of a step's attention metadata."""


def speculative_tokens() -> int:
    """K of the server whose layers are being built; 0 without speculative decoding."""
    from vllm import config as vllm_config

    current = getattr(vllm_config, "get_current_vllm_config_or_none", None)  # not before 0.18
    config = (current or vllm_config.get_current_vllm_config)()
    return 0 if config is None else drafts_of(config)


def drafts_of(config: Any) -> int:
    """Most draft tokens per sequence of a ``VllmConfig``."""
    speculative = getattr(config, "speculative_config", None)
    return int(getattr(speculative, "num_speculative_tokens", None) or 0)


def tell_prefilling(common: Any, metadata: Any) -> None:
    """Hands on to a layer's metadata whether a sequence of the step still has prompt to compute."""
    prefilling = getattr(common, "is_prefilling", None)
    if prefilling is not None and prefilling.device.type == "cpu":  # elsewhere it would wait
        setattr(metadata, _PREFILLING, bool(prefilling.any()))


def any_prefilling(metadata: Any) -> bool | None:
    """What :func:`tell_prefilling` left; None where nothing is known."""
    told: bool | None = getattr(metadata, _PREFILLING, None)
    return told
