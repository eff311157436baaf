"""Scenarios that vLLM would refuse to start, or that are not modelled."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import chain

from hwtune.domain.errors import InputError
from hwtune.domain.scheduler.rules import Rules
from hwtune.domain.scheduler.values import (
    CacheGroup,
    Request,
    Scenario,
    SchedulerConfig,
    Speculation,
)

HIDDEN_STATE_METHODS = ("eagle", "eagle3", "mtp", "dflash")
"""Drafters that read the target's hidden states (SpeculativeConfig.use_eagle)."""
METHODS = (*HIDDEN_STATE_METHODS, "draft_model", "ngram", "suffix", "medusa", "mlp_speculator")
"""Methods whose lookahead and draft slots are known; parallel drafting and dspark are not."""


def check_scenario(scenario: Scenario, rules: Rules) -> None:
    """Accepts what can be played.

    Raises:
        InputError: the first thing that cannot, by its name.
    """
    problems = chain(
        _config_problems(scenario.config),
        _version_problems(scenario, rules),
        _pool_problems(scenario),
        _caching_problems(scenario),
        _request_problems(scenario.requests),
    )
    for problem in problems:
        raise InputError(problem)


def _config_problems(config: SchedulerConfig) -> Iterator[str]:
    sizes = ("max_num_batched_tokens", "max_num_seqs", "max_model_len")
    optional = ("max_num_scheduled_tokens", "max_num_active_seqs")
    for name in (*sizes, *optional):
        value = getattr(config, name)
        if value is not None and value < 1:
            yield f"{name} must be at least 1, not {value}"
    if (config.max_num_active_seqs or 0) > config.max_num_seqs:
        yield "max_num_active_seqs must not be above max_num_seqs"
    if (config.max_num_scheduled_tokens or 0) > config.max_num_batched_tokens:
        yield "max_num_scheduled_tokens must not be above max_num_batched_tokens"
    if config.max_num_batched_tokens < config.max_num_seqs:
        yield "max_num_batched_tokens must not be below max_num_seqs: vLLM refuses it"
    if not config.chunked_prefill and config.max_num_batched_tokens < config.max_model_len:
        yield (
            "max_num_batched_tokens must not be below max_model_len without chunked prefill: "
            "vLLM refuses it"
        )
    if not 0 <= config.long_prefill_token_threshold <= config.max_model_len:
        yield "long_prefill_token_threshold must be from 0 to max_model_len"
    if not 0 <= config.watermark < 1:
        yield f"watermark must be from 0 to below 1, not {config.watermark}"
    if config.speculation is not None:
        yield from _speculation_problems(config.speculation)


def _speculation_problems(speculation: Speculation) -> Iterator[str]:
    if speculation.method not in METHODS:
        known = ", ".join(METHODS)
        yield f"speculative method {speculation.method!r} is not modelled; modelled: {known}"
    if speculation.num_tokens < 1:
        yield "the number of speculative tokens must be at least 1"
    for name, values in (("accept", speculation.accepted), ("draft_lens", speculation.drafted)):
        if values is not None and (not values or min(values) < 0):
            yield f"{name} must be a list of numbers from 0 up, with at least one"
    if max(speculation.drafted or (0,)) > speculation.num_tokens:
        yield f"draft_lens must not be above k, {speculation.num_tokens}: no drafter proposes more"


def _version_problems(scenario: Scenario, rules: Rules) -> Iterator[str]:
    config, version = scenario.config, scenario.config.vllm_version
    later = {
        "max_num_active_seqs": config.max_num_active_seqs is not None and not rules.newest_budgets,
        "long_prefill_adaptive": config.long_prefill_adaptive and not rules.newest_budgets,
        "watermark": config.watermark > 0 and not rules.watermark,
        "mamba mode align": rules.split is None and any(g.mode == "align" for g in scenario.groups),
        "prefix caching over groups of different block sizes": config.prefix_caching
        and len({group.block_size_tokens for group in scenario.groups}) > 1
        and not rules.common_block,
        "speculation beside async scheduling": config.async_scheduling
        and config.speculation is not None
        and not rules.drafts_beside_async,
        "speculative method draft_model": config.speculation is not None
        and config.speculation.method == "draft_model"
        and not rules.drafts_by_model,
        "prefix_match_unit": scenario.prefix_match_tokens is not None and not rules.fine_hits,
    }
    drafter = config.speculation.method if config.speculation else None
    hybrid = config.prefix_caching and len(scenario.groups) > 1
    if hybrid and drafter in HIDDEN_STATE_METHODS and not rules.junctions:
        yield f"prefix caching of a hybrid model beside {drafter} is not modelled before vLLM 0.27"
    if config.retention_tokens and not rules.retention:
        later["retention"] = True
    for name, used in later.items():
        if used:
            yield f"{name}: vLLM {version} does not have it"


def _pool_problems(scenario: Scenario) -> Iterator[str]:
    if scenario.num_blocks < 2:
        yield f"num_blocks must be at least 2 (one is the null block), not {scenario.num_blocks}"
    if not scenario.groups:
        yield "there must be at least one cache group"
    for group in scenario.groups:
        yield from _group_problems(group)


def _caching_problems(scenario: Scenario) -> Iterator[str]:
    groups, config = scenario.groups, scenario.config
    sizes = [group.block_size_tokens for group in groups]
    unit, retention = scenario.prefix_match_tokens, config.retention_tokens
    if unit is not None and (unit < 1 or any(size % unit for size in sizes)):
        yield f"prefix_match_unit {unit} must divide every group's block size"
    if unit is not None and len(sizes) == 1 and unit != sizes[0]:
        yield f"prefix_match_unit {unit}: with one cache group it can only be its block size"
    if retention and (retention < 0 or retention % math.lcm(*sizes)):
        yield f"retention {retention} must be a multiple of all block sizes ({math.lcm(*sizes)})"
    if retention and all(group.kind == "full" for group in groups):
        yield f"retention {retention}: only sliding-window and mamba groups have one; set it to 0"
    unaligned = any(group.kind == "mamba" and group.mode != "align" for group in groups)
    if config.prefix_caching and unaligned and len(set(sizes)) > 1:
        yield "prefix_caching beside mamba groups of another block size needs their mode align"


def _group_problems(group: CacheGroup) -> Iterator[str]:
    if group.block_size_tokens < 1:
        yield f"block_size must be at least 1, not {group.block_size_tokens}"
    if group.kind == "sliding_window" and (group.window_tokens or 0) < 1:
        yield "a sliding_window group needs a window of at least 1 token"


def _request_problems(requests: tuple[Request, ...]) -> Iterator[str]:
    for request in requests:
        for name in ("prompt_len", "output_len"):
            if getattr(request, name) < 1:
                yield f"request {request.id!r}: {name} must be at least 1"
        for name in ("arrival_step", "prefix_len"):
            if getattr(request, name) < 0:
                yield f"request {request.id!r}: {name} must not be negative"
    twice = next((id for id, n in Counter(r.id for r in requests).items() if n > 1), None)
    if twice is not None:
        yield f"request id {twice!r} is used twice"
