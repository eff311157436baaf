"""Four small tasks with known answers: arithmetic, needle, copy, ordering.

They are smoke tests: a kernel that reads the wrong page or loses the tail of a context fails them
by a wide margin. They do not rank models. Each is plain text completion with three worked
examples, so that base and instruction-tuned models both understand it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hwtune.domain.passages import sentences

_EXAMPLES = 3
_ALPHABET = "abcdefghkmnpqrstuvwxyz23456789"
_SITES = ("the harbour office", "the signal tower", "the cold store", "the east granary")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskItem:
    """One question with its answer."""

    task: str
    number: int
    prompt: str
    answer: str
    max_tokens: int
    stop: tuple[str, ...] = ("\n",)


TASKS: Final = ("arithmetic", "needle", "copy", "ordering")


def make_items(count: int, seed: int, filler_sentences: int) -> list[TaskItem]:
    """``count`` items of each task.

    Args:
        count: items per task.
        seed: decides all of them.
        filler_sentences: length of the needle task's context.
    """
    items = []
    for task in TASKS:
        for number in range(count):
            source = random.Random(f"{seed}/{task}/{number}")
            prompt, answer, most = _MAKERS[task](source, number, count, filler_sentences)
            items.append(
                TaskItem(task=task, number=number, prompt=prompt, answer=answer, max_tokens=most)
            )
    return items


def is_right(item: TaskItem, text: str) -> bool:
    """Whether a completion is the answer.

    Numbers may be followed by anything that is no digit; copies and orders must be exact up to
    surrounding spaces.
    """
    given = text.split("\n", 1)[0].strip()
    if item.task in ("arithmetic", "needle"):
        found = re.match(r"-?\d+", given)
        return found is not None and found[0] == item.answer
    return given == item.answer


_Made = tuple[str, str, int]


def _few_shot(make: Callable[[random.Random], tuple[str, str]], source: random.Random) -> _Made:
    shown = [make(source) for _ in range(_EXAMPLES)]
    question, answer = make(source)
    lines = [f"{asked} {given}" for asked, given in shown]
    return "\n".join([*lines, question]), answer, 48


def _arithmetic(source: random.Random, *_: int) -> _Made:
    return _few_shot(_sum, source)


def _sum(source: random.Random) -> tuple[str, str]:
    left, right = source.randrange(11, 90), source.randrange(11, 90)
    if source.random() < 0.5:
        return f"{left} + {right} =", str(left + right)
    return f"{left + right} - {left} =", str(right)


def _copy(source: random.Random, *_: int) -> _Made:
    return _few_shot(_code, source)


def _code(source: random.Random) -> tuple[str, str]:
    groups = ("".join(source.choices(_ALPHABET, k=4)) for _ in range(3))
    text = "-".join(groups)
    return f"Copy exactly: {text} ->", text


def _ordering(source: random.Random, *_: int) -> _Made:
    return _few_shot(_order, source)


def _order(source: random.Random) -> tuple[str, str]:
    numbers = source.sample(range(10, 100), 5)
    listed, ordered = (", ".join(map(str, row)) for row in (numbers, sorted(numbers)))
    return f"From small to large: {listed} ->", ordered


def _needle(source: random.Random, number: int, count: int, filler: int) -> _Made:
    """The needle's depth runs evenly over the items, from the beginning to the end."""
    text = sentences(filler, f"needle/{source.random()}")
    code = str(source.randrange(10000, 100000))
    site = source.choice(_SITES)
    depth = round(len(text) * number / max(1, count - 1))
    text.insert(depth, f"The access code of {site} is {code}.")
    question = f"Question: what is the access code of {site}?\nAnswer: The access code is"
    return f"{' '.join(text)}\n\n{question}", code, 12


_MAKERS: dict[str, Callable[[random.Random, int, int, int], _Made]] = {
    "arithmetic": _arithmetic,
    "needle": _needle,
    "copy": _copy,
    "ordering": _ordering,
}
