"""Where the answers of two arms part, and whether that is still the same model.

Both arms decode greedily. Another order of BF16 additions may choose another token where two are
nearly equal, at any place of an answer, rarely. A broken kernel parts from the baseline at once, or
goes on with another kind of text.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from hwtune.domain.bench import Gate
from hwtune.domain.stats import mean, median

Texts = Sequence[tuple[str, str]]
"""Two answers to each prompt."""

MOST_PARTINGS: Final = 0.10
"""Partings per token that rounding may cause. A public measurement of one prompt asked 1000 times
of a server whose batches vary parted first at token 103 (Thinking Machines, "Defeating
Nondeterminism in LLM Inference", 2025), about one in a hundred; this is ten times as many."""
_BYTES_PER_TOKEN = 4.0
"""Of UTF-8 text, for files that do not tell the tokens of an answer."""
_ALARM = 0.05
"""One-sided chance of an alarm at exactly ``MOST_PARTINGS``."""
_LEAST_TAIL = 64
"""Characters; shorter rests are ruled by zlib's own header."""
_FEWEST_TAILS = 6
_OTHER_KIND = 1.25
"""Ratio of packed sizes. Prose of one model packs alike within a few per cent; noise does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partings:
    """What pairs of answers have in common, in tokens."""

    answers: int
    same: int
    agreed_tokens: float
    """Before the parting, summed over all answers."""
    median_token: float | None
    """Where those that part do so, from 0; None when none does."""

    @property
    def parted(self) -> int:
        """Answers that differ."""
        return self.answers - self.same

    def bound(self, share: float) -> float:
        """Quantile of the partings per token (Clopper-Pearson): 0.05 for at least, 0.95 for at most."""
        from scipy import stats

        parted, agreed = self.parted, self.agreed_tokens
        if share < 0.5:
            return float(stats.beta.ppf(share, parted, agreed + 1)) if parted else 0.0
        return float(stats.beta.ppf(share, parted + 1, agreed)) if agreed else 1.0


def partings(texts: Texts, tokens: Sequence[int] | None = None) -> Partings:
    """Counts where pairs of answers part."""
    agreed = [
        _agreed_tokens(first, second, None if tokens is None else tokens[index])
        for index, (first, second) in enumerate(texts)
    ]
    parted = [value for value, (a, b) in zip(agreed, texts, strict=True) if a != b]
    return Partings(
        answers=len(texts),
        same=len(texts) - len(parted),
        agreed_tokens=math.fsum(agreed),
        median_token=median(parted),
    )


def _agreed_tokens(first: str, second: str, tokens: int | None) -> float:
    size = _bytes(first)
    common = _bytes(first[: _common(first, second)])
    per_token = size / tokens if tokens and size else _BYTES_PER_TOKEN
    return common / per_token


def _common(first: str, second: str) -> int:
    """Characters before the first difference."""
    alike = takewhile(lambda both: both[0] == both[1], zip(first, second, strict=False))
    return sum(1 for _ in alike)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def partings_gate(texts: Texts, tokens: Sequence[int] | None, repeats: Texts) -> Gate:
    """Red when the arms part more often per token than rounding, or than the baseline from itself."""
    name = "outputs agree"
    if not texts:
        return Gate(name=name, state="not checked", evidence="no answers in both arms")
    found, own = partings(texts, tokens), partings(repeats)
    limit = max(MOST_PARTINGS, own.bound(1 - _ALARM) if own.parted else 0.0)
    least = found.bound(_ALARM)
    shown = f"{_shown(found)}; {_own(own)}"
    if least <= limit:
        return Gate(name=name, state="passed", evidence=shown)
    problem = (
        f"outputs have nothing in common but chance: the arms part at one token in {1 / least:.0f}"
        f" or more often, rounding at one in {1 / limit:.0f} at most ({shown})"
    )
    return Gate(name=name, state="failed", evidence=problem)


def _shown(found: Partings) -> str:
    text = f"the same text in {found.same} of {found.answers} prompts"
    if found.median_token is None:
        return text
    return f"{text}, the others part after about {found.median_token:.0f} tokens (median)"


def _own(own: Partings) -> str:
    if not own.answers:
        return "the baseline with itself: not asked (--noise-floor)"
    return f"the baseline with itself: the same in {own.same} of {own.answers}"


def other_kind(texts: Texts) -> str:
    """Says so when one arm, after the parting, writes text that packs much better or worse.

    Over prompts: a 99 % interval of the mean log-ratio of packed sizes that lies beyond a quarter.
    Noise after a sane beginning has no repetition that would make it degenerate, and this finds it.
    """
    logs = [log for first, second in texts if (log := _packed_log_ratio(first, second)) is not None]
    if len(logs) < _FEWEST_TAILS:
        return ""
    from scipy import stats

    center = mean(logs)
    spread = math.sqrt(mean([(log - center) ** 2 for log in logs]) * len(logs) / (len(logs) - 1))
    half = float(stats.t.ppf(0.995, len(logs) - 1)) * spread / math.sqrt(len(logs))
    if abs(center) - half <= math.log(_OTHER_KIND):
        return ""
    return (
        f"where the arms part, the candidate's text packs to {math.exp(center):.2f} times the size of"
        f" the baseline's ({len(logs)} prompts): another kind of text"
    )


def _packed_log_ratio(first: str, second: str) -> float | None:
    """log(candidate / baseline) of the packed sizes of what follows the parting, cut alike."""
    start = _common(first, second)
    length = min(len(first), len(second)) - start
    if length < _LEAST_TAIL:
        return None
    sizes = [
        len(zlib.compress(text[start : start + length].encode("utf-8", "surrogatepass"), 9))
        for text in (first, second)
    ]
    return math.log(sizes[1] / sizes[0])
