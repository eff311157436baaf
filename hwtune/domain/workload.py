"""The design of an A/B run: which prompts go to which arm, in which order.

Everything follows from one seed, so that a run can be resumed and repeated. A *pair* is two
blocks, one per arm, with the same prompts. Two pairs make ABBA or BAAB, drawn at random: a drift
that is linear in time then cancels, and no arm is always first.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from hwtune.domain.bench import ARMS, Phase
from hwtune.domain.bench_metrics import Goal
from hwtune.domain.errors import UsageError
from hwtune.domain.launch import Arm

DESIGN_SCHEMA_VERSION: Final = 2
DEFAULT_TIERS: Final = ("4-8K", "8-16K", "16-32K")
MINIMUM_PAIRS: Final = 6
"""Below this a verdict is refused: with 5 pairs even a sign test cannot reach 5 % (2 x 2^-5)."""

Mode = Literal["concurrent servers", "restart per block", "given urls"]
Api = Literal["completions", "chat"]
Arrival = Literal["closed", "poisson", "constant", "trace"]
TRACE_TIER: Final = "trace"
_MOST_BLOCKS: Final = 10_000
_MOST_PROMPTS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A range of context lengths, prompt and output together."""

    name: str
    least_tokens: int
    most_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """One request of a trace."""

    due_s: float
    """Seconds after the first request of the trace."""
    prompt_tokens: int
    output_tokens: int
    parts: tuple[str, ...] = ()
    """Names of the first parts of its prompt: the same name, the same tokens."""
    part_tokens: int = 0
    """Tokens per name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """Everything that determines a run. Stored before the first request, never changed after."""

    schema_version: int = DESIGN_SCHEMA_VERSION
    scope: str = "serving"
    model: str
    profile: str | None
    flags: tuple[str, ...]
    """vLLM flags given to both arms."""
    mode: Mode
    baseline_urls: tuple[str, ...] = ()
    """Servers that are up; several of one arm are asked in turn."""
    candidate_urls: tuple[str, ...] = ()
    baseline_run: str | None = None
    """Run directory of a server that hwtune started earlier: its markers are checked."""
    candidate_run: str | None = None
    endpoint: Api = "completions"
    """``completions``: token ids of exact length. ``chat``: text of about that length."""
    verify_tls: bool = True
    api_key_variable: str | None = None
    """Environment variable with the API key. The key itself is never stored."""
    vocab_size: int
    tiers: tuple[Tier, ...]
    pairs: int
    """Pairs of blocks per tier."""
    prompts_per_tier: int
    output_tokens: int
    concurrency: int
    """Requests in flight of a closed loop; an open loop has no such limit."""
    arrival: Arrival = "closed"
    """``closed``: a request is sent when another ends. Else the schedule is the clock."""
    rate_per_s: float | None = None
    """Mean requests per second of an open loop; of a trace None keeps its own pace."""
    trace: tuple[Arrived, ...] = ()
    """What is replayed, in order; every pair of blocks takes the next stretch."""
    goals: tuple[Goal, ...] = ()
    """What makes a request a good one; none: no goodput."""
    aa_pairs: int = 0
    """Pairs in which the baseline is compared with itself, before the measurement."""
    repeats: int = 0
    """Prompts per tier that the baseline answers again at the end, for its agreement with itself."""
    warm_up: int = 1
    """Requests per arm and tier before anything counts."""
    settle_s: float = 0.0
    """Pause before every block while both servers are up. An idle vLLM spins for a second after its
    last request (0.32, shm_broadcast.py SpinCondition), which the other arm would pay for."""
    request_timeout_s: float = 600.0
    seed: int = 1
    margin: float = 0.02
    confidence: float = 0.95
    port: int | None = None
    """Port of the baseline; the candidate gets the next one. None: free ones are chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One arm, one tier, one set of prompts: the smallest unit that is measured as a whole."""

    tier: Tier
    pair: int
    arm: Arm
    """In an A/A block only a label: the baseline answers both."""
    phase: Phase = "measured"

    @property
    def server(self) -> Arm:
        """Whose server answers."""
        return "baseline" if self.phase == "a/a" else self.arm

    @property
    def place(self) -> Place:
        """Which pair of blocks this belongs to."""
        return self.phase, self.tier.name, self.pair


Place = tuple[Phase, str, int]
"""Phase, tier and number of a pair of blocks."""


def parse_tier(text: str) -> Tier:
    """``4096-8192``, ``4-8K`` or ``4K-8K``; K is 1024 tokens.

    Raises:
        UsageError: not two whole numbers, or the second is not larger.
    """
    parts = text.strip().upper().split("-")
    try:
        low, high = parts
        scale_low = 1024 if low.endswith("K") or high.endswith("K") else 1
        scale_high = 1024 if high.endswith("K") else 1
        least, most = int(low.rstrip("K")) * scale_low, int(high.rstrip("K")) * scale_high
    except ValueError:
        message = f"--tier {text}: expected tokens as LEAST-MOST, such as 4096-8192 or 4-8K"
        raise UsageError(message) from None
    if not 0 < least < most:
        message = f"--tier {text}: the first number must be above 0 and below the second"
        raise UsageError(message)
    return Tier(name=_tier_name(least, most), least_tokens=least, most_tokens=most)


def _tier_name(least: int, most: int) -> str:
    if least % 1024 == 0 and most % 1024 == 0:
        return f"{least // 1024}-{most // 1024}K"
    return f"{least}-{most}"


def check_design(design: Design) -> None:
    """Refuses a design that cannot be measured.

    Raises:
        UsageError: says which option to change, and to what.
    """
    _check_amounts(design)
    _check_arrival(design)
    if not design.tiers:
        message = "--tier: at least one is needed"
        raise UsageError(message)
    for tier in design.tiers:
        if not 0 < tier.least_tokens < tier.most_tokens:
            message = f"--tier {tier.name}: the first number must be above 0 and below the second"
            raise UsageError(message)
        if tier.most_tokens - design.output_tokens <= tier.least_tokens // 2:
            message = (
                f"--tier {tier.name}: {design.output_tokens} output tokens leave no room for"
                " a prompt of that tier; lower --output-tokens"
            )
            raise UsageError(message)
    names = [tier.name for tier in design.tiers]
    if len(set(names)) < len(names):
        message = f"--tier given twice: {', '.join(names)}"
        raise UsageError(message)
    check_levels(design.margin, design.confidence)


def _check_amounts(design: Design) -> None:
    if min(design.pairs, design.prompts_per_tier, design.concurrency) < 1:
        message = "--blocks, --prompts-per-tier and --concurrency must be 1 or more"
        raise UsageError(message)
    if min(design.warm_up, design.aa_pairs, design.settle_s) < 0:
        message = "--warm-up, --aa and --settle must be 0 or more"
        raise UsageError(message)
    if max(design.pairs, design.aa_pairs) > _MOST_BLOCKS or design.prompts_per_tier > _MOST_PROMPTS:
        message = (
            f"--blocks and --aa must be at most {_MOST_BLOCKS},"
            f" --prompts-per-tier at most {_MOST_PROMPTS}"
        )
        raise UsageError(message)
    if design.output_tokens < 2:
        message = f"--output-tokens {design.output_tokens}: TPOT needs at least 2"
        raise UsageError(message)
    least = design.pairs * (design.concurrency if design.arrival == "closed" else 1)
    if design.prompts_per_tier < least:
        message = (
            f"--prompts-per-tier {design.prompts_per_tier}: {design.pairs} blocks of concurrency"
            f" {least // design.pairs} need at least {least}"
        )
        raise UsageError(message)


def _check_arrival(design: Design) -> None:
    rate = design.rate_per_s
    if (design.arrival == "trace") != bool(design.trace):
        message = "--arrivals: the trace holds no request"
        raise UsageError(message)
    if design.arrival != "trace" and (design.arrival == "closed") != (rate is None):
        message = "--rate and --arrival poisson or constant belong together"
        raise UsageError(message)
    if rate is not None and not (math.isfinite(rate) and rate > 0):
        message = f"--rate {rate}: must be a finite number of requests per second above 0"
        raise UsageError(message)


def with_levels(design: Design, margin: float | None, confidence: float | None) -> Design:
    """The design judged by another margin or confidence; None keeps its own."""
    return replace(
        design,
        margin=design.margin if margin is None else margin,
        confidence=design.confidence if confidence is None else confidence,
    )


def check_levels(margin: float, confidence: float) -> None:
    """Refuses a margin or a confidence outside its range, NaN included.

    Raises:
        UsageError: it is.
    """
    if not 0 < margin < 1 or not 0.5 <= confidence <= 0.9999:
        message = "--margin must lie between 0 and 1, --confidence between 0.5 and 0.9999"
        raise UsageError(message)


def schedule(design: Design) -> tuple[Block, ...]:
    """All blocks in the order they are run. Rounds of ABBA or BAAB, tiers shuffled per round."""
    noise = _rounds(design, "a/a", design.aa_pairs)
    return (*noise, *_rounds(design, "measured", design.pairs))


def _rounds(design: Design, phase: Phase, pairs: int) -> list[Block]:
    rng = random.Random(f"order/{design.seed}/{phase}")
    blocks: list[Block] = []
    for first in range(0, pairs, 2):
        both = range(first, min(first + 2, pairs))
        for tier in rng.sample(design.tiers, len(design.tiers)):
            blocks.extend(_round(tier, both, rng.random() < 0.5, phase))
    return blocks


def _round(tier: Tier, pairs: Sequence[int], flip: bool, phase: Phase) -> list[Block]:
    order = tuple(reversed(ARMS)) if flip else ARMS
    blocks: list[Block] = []
    for pair in pairs:
        blocks.extend(Block(tier=tier, pair=pair, arm=arm, phase=phase) for arm in order)
        order = tuple(reversed(order))
    return blocks


def places(design: Design) -> tuple[Place, ...]:
    """Every pair of blocks once, in the order of the schedule."""
    return tuple(dict.fromkeys(block.place for block in schedule(design)))


def prompts_in_pair(design: Design, pair: int) -> int:
    """Prompts of a tier spread over its pairs as evenly as possible."""
    share, rest = divmod(design.prompts_per_tier, design.pairs)
    return share + (1 if pair % design.pairs < rest else 0)


def stratified_lengths(
    tier: Tier, output_tokens: int, count: int, rng: random.Random
) -> tuple[int, ...]:
    """``count`` prompt lengths, one from each of ``count`` equal parts of the tier, shuffled."""
    least = min(tier.least_tokens, tier.most_tokens - output_tokens)
    width = tier.most_tokens - output_tokens - least
    lengths = [least + int(width * (index + rng.random()) / count) for index in range(count)]
    rng.shuffle(lengths)
    return tuple(lengths)
