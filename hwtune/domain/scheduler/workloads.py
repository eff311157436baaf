"""What is sent to the simulated server: lengths, prefixes and times, all from one seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hwtune.domain.errors import UsageError
from hwtune.domain.units import LARGEST_SIZE
from hwtune.domain.workload import Tier, stratified_lengths

LengthShape = Literal["fixed", "uniform", "geometric"]
Pacing = Literal["closed loop", "timed", "stepped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem:
    """One request to be sent."""

    id: str
    prompt_tokens: int
    output_tokens: int
    arrival_ms: float = 0.0
    """Time since the start; unused in a closed loop."""
    arrival_step: int = 0
    """The first step that can schedule it; only of requests given one by one."""
    priority: int = 0
    prefix_id: str | None = None
    prefix_tokens: int = 0
    """Tokens it shares with every item of the same ``prefix_id``."""
    prefix_names: tuple[str, ...] = ()
    """Instead of ``prefix_id``: names of the consecutive parts of its prompt, as traces give them. A
    name stands for its part and everything before it."""
    prefix_name_tokens: int = 0
    """Tokens per name."""
    block: int = 0
    """In a closed loop a request of another block waits until the block before it is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests and when they are sent."""

    items: tuple[WorkItem, ...]
    pacing: Pacing
    """Closed loop: the next one when an answer is complete. Timed: by ``arrival_ms``. Stepped: by
    ``arrival_step``."""
    concurrency: int | None = None
    """Requests in flight of a closed loop."""
    first_alone: bool = False
    """Whether a request that finds the engine idle starts a step before the others arrive, as over
    a network; else those sent together are scheduled together."""
    title: str
    """One line for people."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLengths:
    """How many tokens the answers have."""

    shape: LengthShape
    low: int
    """The length, the least length, or the mean of a geometric one."""
    high: int
    """The most tokens; the same as ``low`` when fixed."""

    def draw(self, rng: random.Random) -> int:
        """One length."""
        if self.shape == "uniform":
            return rng.randint(self.low, self.high)
        if self.shape == "geometric":
            return min(self.high, 1 + int(rng.expovariate(1.0) * (self.low - 0.5)))
        return self.low

    @property
    def text(self) -> str:
        """For people."""
        shown = {
            "fixed": f"{self.low}",
            "uniform": f"{self.low} to {self.high}",
            "geometric": f"about {self.low} (geometric)",
        }
        return shown[self.shape]


def parse_output_lengths(text: str) -> OutputLengths:
    """``128``, ``64-256`` (uniform) or ``mean:128`` (geometric, at most 8 times the mean).

    Raises:
        UsageError: none of these.
    """
    body = text.strip()
    mean = body.removeprefix("mean:")
    parts = mean.split("-") if mean == body else [mean]
    try:
        numbers = [int(part) for part in parts]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= 2 or not 1 <= numbers[0] <= numbers[-1] <= LARGEST_SIZE:
        message = f"--output-tokens {text[:40]}: expected 128, 64-256 or mean:128"
        raise UsageError(message)
    if mean != body:
        return OutputLengths(shape="geometric", low=numbers[0], high=8 * numbers[0])
    shape: LengthShape = "uniform" if len(numbers) == 2 else "fixed"
    return OutputLengths(shape=shape, low=numbers[0], high=numbers[-1])


def tier_items(
    tiers: Sequence[Tier], per_tier: int, outputs: OutputLengths, seed: int
) -> tuple[WorkItem, ...]:
    """``per_tier`` requests of each tier, as ab-bench draws them, all shuffled together.

    Prompt and output together stay inside the tier's upper bound.

    Raises:
        UsageError: the answers leave no room for a prompt.
    """
    rng = random.Random(f"simulate/{seed}")
    pairs: list[tuple[int, int]] = []
    for tier in tiers:
        lengths = [outputs.draw(rng) for _ in range(per_tier)]
        if tier.most_tokens - max(lengths) < 1:
            message = (
                f"--tier {tier.name}: {max(lengths)} output tokens leave no room for a prompt;"
                " lower --output-tokens"
            )
            raise UsageError(message)
        prompts = stratified_lengths(tier, max(lengths), per_tier, rng)
        pairs.extend(zip(prompts, lengths, strict=True))
    rng.shuffle(pairs)
    return tuple(
        WorkItem(id=f"r{index}", prompt_tokens=prompt, output_tokens=output)
        for index, (prompt, output) in enumerate(pairs)
    )


def parse_request(text: str, index: int) -> WorkItem:
    """``PROMPT:OUTPUT`` or ``PROMPT:OUTPUT@STEP``, named A, B, C …

    Raises:
        UsageError: something else.
    """
    lengths, _, step = text.strip().partition("@")
    prompt, colon, output = lengths.partition(":")
    try:
        numbers = [int(prompt), int(output), int(step or 0)]
    except ValueError:
        numbers = []
    if not numbers or not colon or min(numbers[:2]) < 1 or numbers[2] < 0:
        message = f"--request {text[:40]}: expected PROMPT:OUTPUT or PROMPT:OUTPUT@STEP in tokens"
        raise UsageError(message)
    return WorkItem(
        id=_letters(index),
        prompt_tokens=numbers[0],
        output_tokens=numbers[1],
        arrival_step=numbers[2],
    )


def _letters(index: int) -> str:
    """A, B … Z, AA, AB …"""
    name = ""
    index += 1
    while index:
        index, digit = divmod(index - 1, 26)
        name = chr(ord("A") + digit) + name
    return name


def share_prefix(
    items: Iterable[WorkItem], tokens: int, groups: int, seed: int
) -> tuple[WorkItem, ...]:
    """The items with a common beginning of ``tokens``, in ``groups`` kinds drawn at random."""
    rng = random.Random(f"prefix/{seed}")
    return tuple(
        replace(
            item,
            prefix_id=f"prefix{rng.randrange(groups)}",
            prefix_tokens=min(tokens, item.prompt_tokens),
        )
        for item in items
    )


def poisson(items: Iterable[WorkItem], per_second: float, seed: int) -> tuple[WorkItem, ...]:
    """The items with exponential gaps between arrivals."""
    rng = random.Random(f"arrival/{seed}")
    now = 0.0
    timed = []
    for item in items:
        now += 1000.0 * rng.expovariate(per_second)
        timed.append(replace(item, arrival_ms=now))
    return tuple(timed)


def fit(items: Iterable[WorkItem], max_model_len: int) -> tuple[tuple[WorkItem, ...], int]:
    """(items that vLLM would accept, how many it would refuse): a prompt must leave room for a token."""
    kept = []
    refused = 0
    for item in items:
        if item.prompt_tokens < max_model_len:
            kept.append(item)
        else:
            refused += 1
    return tuple(kept), refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """How long a simulated step takes. Not predicted: the user says it."""

    step_ms: float
    token_ms: float
    """More per scheduled token."""

    def of(self, tokens: int) -> float:
        """Milliseconds of a step."""
        return self.step_ms + self.token_ms * tokens

    @property
    def text(self) -> str:
        """For people."""
        return f"a step is taken to last {self.step_ms:g} ms + {self.token_ms:g} ms per token"
