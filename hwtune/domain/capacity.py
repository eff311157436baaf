"""How many pages, tokens and requests a KV cache of a given size holds."""

from __future__ import annotations

from dataclasses import dataclass

from hwtune.domain.page_rules_versions import Feature, select_rule
from hwtune.domain.page_steps import PageDerivation
from hwtune.domain.units import ceil_div

TOKENS_FROM_GROUPS = Feature(
    since=(0, 9, 2), until=(0, 21, 0), source="v1/core/kv_cache_utils.py _report_kv_cache_config"
)
"""Releases that print blocks // groups x block size as the cache's tokens: logs of 0.18.1, 0.19.2rc1
and 0.20.0 do, logs of 0.25.1 and 0.32.0 do not; the releases in between are taken as new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What fits into the KV cache of one rank, counted as vLLM counts it."""

    memory_bytes: int
    layers_per_group: int
    attention_groups: int
    recurrent_groups: int
    num_blocks: int
    """vLLM's num_gpu_blocks; one of them is the null block."""
    request_tokens: int
    """Length of the request that ``blocks_per_request`` is for."""
    blocks_per_request: int
    concurrency: float
    """Requests of that length at once, as vLLM prints it."""
    tokens: int
    """Cache size in tokens, as vLLM prints it."""


def capacity(
    page: PageDerivation, memory_bytes: int, request_tokens: int | None = None
) -> Capacity | None:
    """The capacity for requests of a length; None when the config hides the layer counts, and with
    pipeline parallelism, which splits the groups.

    ``request_tokens`` defaults to the maximum model length. Source:
    v1/core/kv_cache_utils.py get_kv_cache_config_from_groups and
    get_max_concurrency_for_kv_cache_config (0.32.0).
    """
    length = request_tokens or page.deployment.max_model_len or page.model.max_model_len
    groups = _groups(page)
    pipelined = page.deployment.pipeline_parallel_size > 1
    if groups is None or length is None or page.attention_page_bytes == 0 or pipelined:
        return None
    per_group, attention_groups, recurrent_groups = groups
    page_bytes = max(page.attention_page_bytes, page.mamba_page_padded_bytes or 0)
    num_blocks = memory_bytes // page_bytes // per_group
    per_request = attention_groups * ceil_div(length, page.block_size_tokens)
    per_request += recurrent_groups * state_blocks(page)
    concurrency = num_blocks / per_request
    return Capacity(
        memory_bytes=memory_bytes,
        layers_per_group=per_group,
        attention_groups=attention_groups,
        recurrent_groups=recurrent_groups,
        num_blocks=num_blocks,
        request_tokens=length,
        blocks_per_request=per_request,
        concurrency=concurrency,
        tokens=_tokens(page, num_blocks, attention_groups + recurrent_groups, concurrency, length),
    )


def state_blocks(page: PageDerivation) -> int:
    """Blocks that one request holds in each recurrent group."""
    drafts = page.deployment.num_speculative_tokens
    return (2 if page.mamba_cache_mode == "align" else 1) + drafts


def _groups(page: PageDerivation) -> tuple[int, int, int] | None:
    """(layers per group, attention groups, recurrent groups); MTP layers attend as well.

    Source: v1/core/kv_cache_utils.py _get_kv_cache_groups_uniform_page_size.
    """
    attention = page.model.attention.num_layers
    if attention and (page.deployment.speculative_method or "").endswith("mtp"):
        attention += page.model.mtp_layers
    recurrent = page.model.recurrent.num_layers if page.model.recurrent else 0
    if not page.hybrid:
        recurrent = 0
    if not attention or recurrent is None:
        return None
    if recurrent == 0:
        return attention, 1, 0
    small, large = sorted((attention, recurrent))
    size = large if large < small * 1.5 else small
    return size, ceil_div(attention, size), ceil_div(recurrent, size)


def _tokens(
    page: PageDerivation, num_blocks: int, groups: int, concurrency: float, length: int
) -> int:
    version = select_rule(page.deployment.engine, page.deployment.version).version
    if page.deployment.engine == "vllm" and TOKENS_FROM_GROUPS.holds(version):
        return num_blocks // groups * page.block_size_tokens
    return int(concurrency * length)
