"""Is what the arms wrote comparable? One rule for live and for saved runs."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from hwtune.domain.bench import Gate
from hwtune.domain.partings import Texts, other_kind, partings_gate

_SHORT_UNIT = 16
_LONGEST_UNIT = 64
_LEAST_COMPRESSED = 64
"""Characters; shorter texts are ruled by zlib's own header."""
_SMALLEST_RATIO = 0.15
_CHANCE = 0.01


def is_degenerate(text: str) -> bool:
    """Empty, one unit repeated to the end, or next to no content: what broken kernels write.

    The last three quarters are looked at, so that a sane first word does not hide it, with and
    without their last eighth, so that a broken last unit does not either. A unit of at most 16
    characters must come 6 times in them, one of at most 64 characters 3 times. Texts that zlib
    packs to under 15 % say nothing either.
    """
    if not text.strip():
        return True
    tail = text[len(text) // 4 :]
    if _repeats(tail) or _repeats(tail[: len(tail) - len(tail) // 8]):
        return True
    data = text.encode("utf-8", "surrogatepass")
    packed = len(zlib.compress(data, 9))
    return len(text) >= _LEAST_COMPRESSED and packed < _SMALLEST_RATIO * len(data)


def _repeats(text: str) -> bool:
    """One unit from the first character to the last; the last unit may be cut."""
    return any(
        text[unit:] == text[:-unit]
        for unit in range(1, _LONGEST_UNIT + 1)
        if unit * (6 if unit <= _SHORT_UNIT else 3) <= len(text)
    )


def output_gates(
    texts: Texts, tokens: Sequence[int] | None = None, repeats: Texts = ()
) -> tuple[Gate, Gate]:
    """Gates over the answers to the same prompts.

    Args:
        texts: of the baseline and of the candidate.
        tokens: of each of the baseline's answers; None estimates them from the text.
        repeats: the baseline's two answers to the same prompts, where it was asked twice.
    """
    return _sane(texts), partings_gate(texts, tokens, repeats)


def _sane(texts: Texts) -> Gate:
    """Red when a tenth of the prompts or more degenerate in one arm and not in the other, or fewer
    that are too many for chance.

    When both arms give the same degenerate text it is the model that does so; that is said, and
    it does not make the arms incomparable.
    """
    name = "sane output"
    if not texts:
        return Gate(name=name, state="not checked", evidence="no answers in both arms")
    flags = [(is_degenerate(first), is_degenerate(second)) for first, second in texts]
    counts = [sum(flag[side] for flag in flags) for side in (0, 1)]
    differing = sum(
        flag != (False, False) and first != second
        for flag, (first, second) in zip(flags, texts, strict=True)
    )
    shown = f"baseline {counts[0]}, candidate {counts[1]} of {len(texts)} answers"
    if differing * 10 >= len(texts) or _more_than_chance(flags):
        problem = f"output degenerate (empty, or one unit repeated to the end): {shown}"
        return Gate(name=name, state="failed", evidence=problem)
    if odd := other_kind(texts):
        return Gate(name=name, state="failed", evidence=odd)
    same = " (the same text in both arms)" if any(counts) else ""
    return Gate(name=name, state="passed", evidence=f"degenerate: {shown}{same}")


def _more_than_chance(flags: Sequence[tuple[bool, bool]]) -> bool:
    """Whether answers degenerate in the candidate alone more often than in the baseline alone.

    McNemar's exact test, one-sided, at 1 %: seven against none.
    """
    from scipy import stats

    alone = [sum(flag == side for flag in flags) for side in ((True, False), (False, True))]
    return float(stats.binom.sf(alone[1] - 1, sum(alone), 0.5)) < _CHANCE if alone[1] else False
