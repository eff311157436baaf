"""Work of full attention in a step: multiply-adds and bytes of cache, per layer and rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hwtune.domain.scheduler.classify import BatchRow


class Work(NamedTuple):
    """Amounts that add up over steps."""

    steps: int = 0
    tokens: int = 0
    flops: int = 0
    """Of Q K^T and P V: 4 x heads x head size for each pair of query and key."""
    bytes: int = 0
    """K and V of every sequence once per step, plus its Q and output. What a kernel moves at
    least; one that reads a page again for each block of queries moves more."""

    def plus(self, other: Work) -> Work:
        """Both together."""
        return Work(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    """What a layer's attention costs per unit, on one rank."""

    flops_per_pair: int
    """4 x query heads x head size."""
    kv_bytes_per_token: int
    """K and V of one token."""
    io_bytes_per_token: int
    """Q read and output written for one token."""


def step_work(rows: Sequence[BatchRow], cost: LayerCost, count: int = 1) -> Work:
    """Work of ``count`` consecutive steps whose cursors advance by one token per step.

    With ``count`` 1 the rows may be anything; more is for runs of pure decoding.
    """
    tokens = sum(row[0] for row in rows)
    pairs = sum(q * c + q * (q + 1) // 2 for q, c, _, _ in rows)
    context = sum(q + c for q, c, _, _ in rows)
    later = count * (count - 1) // 2
    return Work(
        steps=count,
        tokens=count * tokens,
        flops=cost.flops_per_pair * (count * pairs + later * tokens),
        bytes=cost.kv_bytes_per_token * (count * context + later * len(rows))
        + cost.io_bytes_per_token * count * tokens,
    )
