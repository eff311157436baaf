"""Which records belong together: the last attempt at a pair of blocks, whole in both arms."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from hwtune.domain.bench import ARMS, Phase, RequestRecord
from hwtune.domain.validity import Pair, unusable
from hwtune.domain.workload import Design, Place, places, prompts_in_pair

BlockPair = tuple[Pair, ...]
"""All prompts of one pair of blocks."""


def latest_attempts(
    records: Iterable[RequestRecord], tier: str, phase: Phase = "measured"
) -> list[RequestRecord]:
    """Records of a tier's phase without those that a later attempt at the pair replaces."""
    mine = [record for record in records if record.phase == phase and record.tier == tier]
    latest: dict[int, int] = {}
    for record in mine:
        latest[record.pair] = max(latest.get(record.pair, 0), record.attempt)
    return [record for record in mine if record.attempt == latest[record.pair]]


def paired_blocks(records: Iterable[RequestRecord], design: Design) -> dict[int, BlockPair]:
    """Pairs of blocks in which both arms answered every prompt, by pair number."""
    cells: dict[tuple[int, int], dict[str, RequestRecord]] = defaultdict(dict)
    for record in records:
        if record.failure is None and not unusable(record):
            cells[record.pair, record.prompt][record.arm] = record
    blocks: dict[int, list[Pair]] = defaultdict(list)
    for (pair, _), cell in sorted(cells.items()):
        if len(cell) == len(ARMS):
            blocks[pair].append((cell["baseline"], cell["candidate"]))
    return {
        pair: tuple(block)
        for pair, block in blocks.items()
        if len(block) == prompts_in_pair(design, pair)
    }


def repeated(
    records: Iterable[RequestRecord], measured: Iterable[RequestRecord], tier: str
) -> list[tuple[str, str]]:
    """Texts of the baseline's two answers to the same prompt, where it was asked again."""
    first = {
        record.prompt_id: record.text
        for record in measured
        if record.arm == "baseline" and record.failure is None
    }
    return [
        (first[record.prompt_id], record.text)
        for record in records
        if record.phase == "repeat" and record.tier == tier and record.failure is None
        if record.prompt_id in first
    ]


def next_attempts(design: Design, earlier: Iterable[RequestRecord]) -> dict[Place, int]:
    """Pairs still to run, with their attempt number.

    A pair is finished when both arms have a record of every prompt in the same attempt and no
    request met a dead server. Otherwise both arms measure it again, with fresh prompts.
    """
    counts: Counter[tuple[Place, int]] = Counter()
    void: set[tuple[Place, int]] = set()
    highest: dict[Place, int] = {}
    for record in earlier:
        place = (record.phase, record.tier, record.pair)
        highest[place] = max(highest.get(place, 0), record.attempt)
        counts[place, record.attempt] += 1
        if record.failure == "connect error":
            void.add((place, record.attempt))
    missing: dict[Place, int] = {}
    for place in places(design):
        last = (place, highest.get(place, -1))
        full = prompts_in_pair(design, place[2]) * len(ARMS)
        if last in void or counts[last] < full:
            missing[place] = last[1] + 1
    return missing
