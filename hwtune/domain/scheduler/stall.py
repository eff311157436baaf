"""Why a run that has requests left schedules nothing."""

from __future__ import annotations

from hwtune.domain.scheduler.engine import Engine
from hwtune.domain.scheduler.live import Live
from hwtune.domain.scheduler.setup import Setup
from hwtune.domain.scheduler.values import Stall


def explain_stall(engine: Engine, setup: Setup) -> Stall | None:
    """What blocks the first request that cannot go on; None when nothing is left to do.

    Meant for an engine whose last steps were empty and to which no request will come.
    """
    waiting = [live.id for live in engine.running] + list(engine.waiting.ids())
    if not waiting:
        return None
    if engine.running:
        reason = _running_reason(engine.running[0], setup)
    else:
        reason = _waiting_reason(engine.waiting.head(), engine, setup)
    return Stall(waiting=tuple(waiting), reason=f"{waiting[0]}: {reason}")


def _running_reason(live: Live, setup: Setup) -> str:
    limit = setup.config.max_model_len
    if live.computed >= limit - 1:
        return (
            f"{live.known} tokens do not fit below max_model_len {limit}, which leaves room for "
            "one sampled token (the API server refuses such a request)"
        )
    return _alignment_reason(live, setup)


def _waiting_reason(live: Live, engine: Engine, setup: Setup) -> str:
    config, pool = setup.config, engine.cache.pool
    budget = min(setup.max_scheduled, config.max_num_batched_tokens - setup.draft_slots)
    if budget < 1:
        return f"the drafter needs {setup.draft_slots} of max_num_batched_tokens for each request"
    if not config.chunked_prefill and live.known > budget:
        return (
            f"its {live.known} tokens exceed the budget of {budget}, and chunked prefill is off: "
            "raise max_num_batched_tokens or allow chunks"
        )
    tokens = min(live.known, budget)
    if setup.split and not setup.split.clip(live, tokens, 0):
        return _alignment_reason(live, setup)
    shown = live.known if setup.reserves else tokens
    blocks = engine.cache.needed(live, shown)
    return (
        f"{shown} tokens take {blocks} blocks in {len(setup.groups)} cache groups, and of "
        f"the pool's {pool.num_blocks - 1} only {pool.free} are free: more KV-cache memory, or a "
        "lower max_model_len so that the request is refused"
    )


def _alignment_reason(live: Live, setup: Setup) -> str:
    block = setup.split.block if setup.split else 0
    return (
        f"align mode needs chunks of whole blocks ({block} tokens), and no step has that many "
        f"tokens left at position {live.computed}: raise max_num_batched_tokens above a block "
        "plus one token for every decode"
    )
