"""What is asked: the prompts of a block, their lengths, and when each is due.

Everything follows from the design's seed, so both arms of a pair get the same.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from hwtune.domain.workload import Block, Design, Tier, prompts_in_pair, stratified_lengths

_WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "you",
    "that",
    "it",
    "he",
    "was",
    "for",
    "on",
    "are",
    "as",
    "with",
    "his",
    "they",
    "at",
    "be",
    "this",
    "have",
    "from",
    "or",
    "one",
    "had",
    "by",
    "word",
    "but",
    "not",
    "what",
    "all",
    "were",
    "we",
    "when",
    "your",
    "can",
    "said",
    "there",
    "use",
    "an",
    "each",
    "which",
    "she",
    "do",
    "how",
    "their",
    "if",
    "will",
    "up",
    "other",
    "about",
    "out",
    "many",
    "then",
    "them",
    "these",
    "so",
    "some",
    "her",
    "would",
    "make",
    "like",
    "him",
    "into",
    "time",
    "has",
    "look",
    "two",
    "more",
    "write",
    "go",
    "see",
    "number",
    "no",
    "way",
    "could",
    "people",
    "my",
    "than",
    "first",
    "water",
    "been",
    "call",
    "who",
    "oil",
    "its",
    "now",
    "find",
    "long",
    "down",
    "day",
    "did",
    "get",
    "come",
    "made",
    "may",
    "part",
]
"""Common English words: nearly every tokenizer has each as one token."""
_TEXT_SHARE = 0.98
"""Texts are made this much shorter than asked, so that none exceeds its tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One prompt of a block, not yet written out."""

    key: str
    """Decides its content."""
    tokens: int
    due_s: float | None
    """Seconds after the first request of the block; None in a closed loop."""
    output_tokens: int
    part_keys: tuple[str, ...] = ()
    """Decide the content of its first parts, which others may share."""
    part_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TextScale:
    """How many tokens a server makes of a chat message, found by asking it."""

    fixed_tokens: float
    """What the chat template adds."""
    tokens_per_word: float

    def words(self, tokens: int) -> int:
        """Words for a prompt of about so many tokens, and not more."""
        return max(1, int((tokens - self.fixed_tokens) / self.tokens_per_word * _TEXT_SHARE))


def draws(design: Design, block: Block, attempt: int) -> list[Draw]:
    """Every prompt of a block, in the order in which they are sent.

    Both arms of a pair get the same ones. In an A/A block, where one server answers both, the
    lengths are the same and the tokens are not: a prefix cache would answer the second time.
    """
    key = f"{block.phase}/{attempt}"
    label = block.arm if block.phase == "a/a" else ""
    if design.trace:
        return _replayed(design, block, f"{design.seed}/trace/{block.pair}/{key}/{label}")
    lengths = prompt_lengths(design, block.tier, block.pair, key)
    stem = f"{design.seed}/{block.tier.name}/{block.pair}/{key}/{label}"
    times = arrival_times(design, block, attempt)
    return [
        Draw(
            key=f"{stem}/{index}",
            tokens=length,
            due_s=due_s,
            output_tokens=design.output_tokens,
        )
        for index, (length, due_s) in enumerate(zip(lengths, times, strict=True))
    ]


def _replayed(design: Design, block: Block, stem: str) -> list[Draw]:
    """The stretch of the trace that is this pair's; the A/A phase replays it from the beginning."""
    pair = block.pair % design.pairs
    first = sum(prompts_in_pair(design, earlier) for earlier in range(pair))
    stretch = design.trace[first : first + prompts_in_pair(design, pair)]
    pace = _pace(design)
    return [
        Draw(
            key=f"{stem}/{index}",
            tokens=arrived.prompt_tokens,
            due_s=(arrived.due_s - stretch[0].due_s) * pace,
            output_tokens=arrived.output_tokens,
            part_keys=tuple(f"{stem}/part/{name}" for name in arrived.parts),
            part_tokens=arrived.part_tokens,
        )
        for index, arrived in enumerate(stretch)
    ]


def _pace(design: Design) -> float:
    """Factor on the gaps of the trace, so that its mean rate is the one asked for."""
    seconds = design.trace[-1].due_s - design.trace[0].due_s
    if design.rate_per_s is None or seconds <= 0:
        return 1.0
    return (len(design.trace) - 1) / design.rate_per_s / seconds


def arrival_times(design: Design, block: Block, attempt: int) -> list[float] | list[None]:
    """Seconds after the first request, the same in both arms; all None in a closed loop."""
    count = prompts_in_pair(design, block.pair)
    if design.arrival == "closed" or design.rate_per_s is None:
        return [None] * count
    if design.arrival == "constant":
        return [index / design.rate_per_s for index in range(count)]
    place = f"{block.tier.name}/{block.pair}/{block.phase}/{attempt}"
    rng = random.Random(f"arrival/{design.seed}/{place}")
    gaps = (rng.expovariate(design.rate_per_s) for _ in range(count - 1))
    return [0.0, *accumulate(gaps)]


def prompt_lengths(design: Design, tier: Tier, pair: int, key: str = "") -> tuple[int, ...]:
    """Prompt tokens, stratified over the tier so that every block has the same mix of lengths.

    Prompt and output together stay inside the tier's upper bound.
    """
    count = prompts_in_pair(design, pair)
    rng = random.Random(f"length/{design.seed}/{tier.name}/{pair}/{key}")
    return stratified_lengths(tier, design.output_tokens, count, rng)


def warm_up_lengths(design: Design, tier: Tier) -> tuple[int, ...]:
    """The longest prompt of the tier, so that every later shape has been seen."""
    return (tier.most_tokens - design.output_tokens,) * design.warm_up


def token_prompt(key: str, length: int, vocab_size: int) -> list[int]:
    """``length`` token ids drawn from ``key``.

    The ids come from 5 % to 75 % of the vocabulary: control and image tokens sit at either end.
    Two keys share no prefix worth caching.
    """
    rng = random.Random(f"prompt/{key}")
    low = max(1, vocab_size // 20)
    high = max(low + 1, vocab_size * 3 // 4)
    return rng.choices(range(low, high), k=length)


def text_prompt(key: str, words: int) -> str:
    """``words`` common words drawn from ``key``; two keys share no prefix worth caching."""
    return " ".join(random.Random(f"prompt/{key}").choices(_WORDS, k=words))


def shared_prompt(draw: Draw, vocab_size: int) -> list[int]:
    """Token ids of a draw: its parts, as far as they reach, and then its own."""
    parts = [token_prompt(key, draw.part_tokens, vocab_size) for key in draw.part_keys]
    tokens = [token for part in parts for token in part][: draw.tokens]
    return tokens + token_prompt(draw.key, draw.tokens - len(tokens), vocab_size)


def shared_text(draw: Draw, scale: TextScale) -> str:
    """The same as words of about so many tokens."""
    words = scale.words(draw.tokens)
    per_part = max(1, int(draw.part_tokens / scale.tokens_per_word))
    parts = [text_prompt(key, per_part) for key in draw.part_keys]
    shared = " ".join(parts).split()[:words]
    own = text_prompt(draw.key, words - len(shared)) if len(shared) < words else ""
    return " ".join([*shared, *own.split()])


def prompt_hash(prompt: Sequence[int] | str) -> str:
    """Short name of a prompt's content."""
    text = prompt if isinstance(prompt, str) else ",".join(map(str, prompt))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
