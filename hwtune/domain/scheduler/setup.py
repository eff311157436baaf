"""From a scenario to everything the engine derives from it once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hwtune.domain.scheduler.check import HIDDEN_STATE_METHODS, check_scenario
from hwtune.domain.scheduler.rules import Rules, rules_for
from hwtune.domain.scheduler.split import AlignedSplit
from hwtune.domain.scheduler.values import CacheGroup, Scenario, SchedulerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Sizes in tokens unless named otherwise."""

    config: SchedulerConfig
    rules: Rules
    groups: tuple[CacheGroup, ...]
    num_blocks: int
    max_scheduled: int
    """Budget of a step."""
    max_active: int
    """Most running requests."""
    num_drafts: int
    """K."""
    lookahead: int
    """Slots beyond the scheduled tokens that the drafter writes (num_lookahead_tokens)."""
    draft_slots: int
    """Extra inputs per request (max_num_new_slots_for_drafting)."""
    retention: int | None
    """Tokens between cached states; 0: replay boundaries only, None: every block."""
    reserves: bool
    """Only requests whose whole known sequence fits are admitted."""
    drops_last: bool
    """The last matched unit of a prefix is recomputed for the drafter."""
    scheduler_block: int
    """Least common multiple of the groups' blocks."""
    hash_block: int
    fine: bool
    """Prefix hits may end inside a block."""
    max_in_flight: int
    """Tokens that can be scheduled and not processed at a time."""
    split: AlignedSplit | None
    """How prefills are cut in align mode."""


def prepare(scenario: Scenario) -> Setup:
    """Resolves what vLLM resolves when it starts.

    Raises:
        InputError: something that is not modelled, or that vLLM would refuse.
    """
    config = scenario.config
    rules = rules_for(config.vllm_version)
    check_scenario(scenario, rules)
    speculation = config.speculation
    method = speculation.method if speculation else None
    drafts = speculation.num_tokens if speculation else 0
    scheduler_block, hash_block = _block_sizes(scenario, rules)
    fine = _fine_hits(scenario, hash_block)
    drops_last = method in HIDDEN_STATE_METHODS
    max_scheduled = config.max_num_scheduled_tokens or config.max_num_batched_tokens
    return Setup(
        config=config,
        rules=rules,
        groups=scenario.groups,
        num_blocks=scenario.num_blocks,
        max_scheduled=max_scheduled,
        max_active=config.max_num_active_seqs or config.max_num_seqs,
        num_drafts=drafts,
        lookahead=_lookahead(method, drafts),
        draft_slots=_draft_slots(method, drafts) if rules.charges_drafters else 0,
        retention=config.retention_tokens if rules.retention else None,
        reserves=config.reserve_full_isl and rules.reserves_full_isl,
        drops_last=drops_last,
        scheduler_block=scheduler_block,
        hash_block=hash_block,
        fine=fine,
        max_in_flight=config.max_num_batched_tokens * (2 if config.async_scheduling else 1),
        split=_split(scenario, rules, hash_block, fine, drops_last, max_scheduled),
    )


def _draft_slots(method: str | None, drafts: int) -> int:
    return {"draft_model": 1, "dflash": drafts}.get(method or "", 0)


def _lookahead(method: str | None, drafts: int) -> int:
    if method == "dflash":
        return drafts + 1
    return drafts if method in (*HIDDEN_STATE_METHODS, "draft_model") else 0


def _block_sizes(scenario: Scenario, rules: Rules) -> tuple[int, int]:
    """Scheduler block and hash block (resolve_kv_cache_block_sizes)."""
    blocks = [group.block_size_tokens for group in scenario.groups]
    if not rules.common_block:
        return blocks[0], blocks[0]
    common = math.lcm(*blocks)
    unaligned = any(g.kind == "mamba" and g.mode != "align" for g in scenario.groups)
    if len(blocks) == 1 or not scenario.config.prefix_caching or unaligned:
        return common, common
    return common, scenario.prefix_match_tokens or math.gcd(*blocks)


def _fine_hits(scenario: Scenario, hash_block: int) -> bool:
    """Whether hits may end inside a block: align mode, hashes finer than the state's block, and
    no group that matches whole blocks only (partial_hash_hits_enabled)."""
    groups = scenario.groups
    if len(groups) == 1 or not scenario.config.prefix_caching:
        return False
    return any(
        g.kind == "mamba" and g.mode == "align" and g.block_size_tokens > hash_block for g in groups
    ) and all(g.kind != "sliding_window" or g.block_size_tokens == hash_block for g in groups)


def _split(
    scenario: Scenario,
    rules: Rules,
    hash_block: int,
    fine: bool,
    drops_last: bool,
    max_scheduled: int,
) -> AlignedSplit | None:
    aligned = [g for g in scenario.groups if g.kind == "mamba" and g.mode == "align"]
    if not aligned:
        return None
    threshold = scenario.config.long_prefill_token_threshold
    return AlignedSplit(
        block=aligned[0].block_size_tokens,
        unit=hash_block,
        fine=fine,
        drop_last=drops_last,
        whole_blocks=rules.split == "whole",
        before_last=rules.resumes_before_last,
        largest_chunk=min(max_scheduled, threshold) if threshold > 0 else max_scheduled,
    )
