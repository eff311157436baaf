"""Where a run stands while it goes on: what is done, and what a tier shows so far."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hwtune.domain.bench import Phase, RequestRecord
from hwtune.domain.bench_metrics import TTFT
from hwtune.domain.bench_values import log_ratio, typical
from hwtune.domain.pairing import latest_attempts, paired_blocks
from hwtune.domain.stats import interval_of_mean, median
from hwtune.domain.validity import tier_gates
from hwtune.domain.workload import Block, Design

_FEWEST_BLOCKS = 3
"""An interval over two is as wide as the sky."""
_LAST_PROMPTS = 200
"""Whose texts are looked at after each block; at the end all are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockNews:
    """A block has ended."""

    done: int
    total: int
    tier: str
    tier_done: int
    tier_total: int
    line: str
    """What the block itself showed."""
    standing: str
    """What its tier shows so far, provisionally; empty while there is nothing to say."""


def block_line(block: Block, records: Iterable[RequestRecord]) -> str:
    """What one finished block showed."""
    mine = [
        record
        for record in records
        if (record.phase, record.tier, record.pair, record.arm)
        == (block.phase, block.tier.name, block.pair, block.arm)
    ]
    ttft = median([record.ttft_s for record in mine if record.ttft_s is not None])
    shown = "no answer" if ttft is None else f"TTFT {ttft * 1e3:.1f} ms"
    failed = sum(record.failure is not None for record in mine)
    trouble = f", {failed} FAILED" if failed else ""
    noise = "A/A " if block.phase == "a/a" else ""
    return f"{block.tier.name} {noise}block {block.pair + 1} {block.arm}: {shown}{trouble}"


def standing(design: Design, tier: str, phase: Phase, records: Sequence[RequestRecord]) -> str:
    """Both arms' TTFT, and the interval of its change while no gate of the tier is red.

    Provisional: markers and the gates of the whole run are judged at the end.
    """
    if phase != "measured":
        return ""
    mine = latest_attempts(records, tier)
    blocks = tuple(paired_blocks(mine, design).values())
    if not blocks:
        return ""
    pairs = [pair for block in blocks for pair in block][-_LAST_PROMPTS:]
    red = [gate for gate in tier_gates(mine, pairs, design.output_tokens) if gate.state == "failed"]
    if red:
        return f"RED: {red[0].name}"
    first, second = (typical(TTFT, blocks, side) for side in (0, 1))
    text = f"median TTFT {first:.1f} | {second:.1f} ms"
    logs = [log_ratio(TTFT, block) for block in blocks]
    if len(logs) < _FEWEST_BLOCKS:
        return text
    level = 1.0 - (1.0 - design.confidence) / len(design.tiers)
    low, high = (math.expm1(bound) * 100 for bound in interval_of_mean(logs, level))
    return f"{text}, change [{low:+.1f}, {high:+.1f}] % (provisional)"
