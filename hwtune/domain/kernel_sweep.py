"""Which launch constants to try for a kernel, and which of those tried is the best."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hwtune.domain.errors import UsageError
from hwtune.domain.kernel_static import StaticRow

GRIDS: Final[Mapping[str, Mapping[str, tuple[int, ...]]]] = {
    "decode.triton": {
        "tile_tokens": (32, 64, 16),
        "num_warps": (4, 2, 1, 8),
        "num_stages": (2, 3, 1),
    },
    "prefill.triton": {
        "tile_tokens": (32, 16, 64),
        "num_warps": (8, 4, 2),
        "rows": (128, 64),
        "num_stages": (2, 3),
    },
}
"""Per implementation, the values of each constant, the likeliest first."""

REFINED: Final = {"decode.triton": ("programs", (0.5, 2.0))}
"""What only a device can decide, and by which factors: how finely sequences are cut."""

SCHEDULERS: Final = 4
"""Instruction schedulers of a processor: an SM since Volta, a CU of CDNA (its four SIMDs)."""
REGISTER_FILE: Final = {"sm": 65536, "gfx": 4 * 64 * 512}
"""Vector registers of 4 bytes per processor (CUDA C++ programming guide, technical specifications;
AMD CDNA3 ISA, 512 per lane and SIMD, accumulation registers included)."""
LANES: Final = {"sm": 32, "gfx": 64}
DECODE_PROGRAMS: Final = 2
"""Programs of a decode per processor, as the profiles' ``programs`` wants it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One set of launch constants and what came of it."""

    tuning: dict[str, int]
    score: float | None
    """Relative to vLLM's generic kernel as vLLM launches it, lower is better; None: it failed."""
    note: str = ""
    """What speaks against it, or why it failed."""
    row: StaticRow | None = None
    """Of a compiled trial."""
    microseconds: tuple[tuple[str, float], ...] = ()
    """Of a timed trial: what was timed, and its median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """All trials of one question, the best first."""

    implementation: str
    shape: str
    """Query heads/KV heads/head size."""
    page: int
    """Tokens per page."""
    where: str
    """The target, or the device."""
    scored_by: str
    trials: tuple[Trial, ...]
    baseline: StaticRow | None = None
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Trial | None:
        """None where every trial failed or has something against it."""
        first = self.trials[0] if self.trials else None
        return first if first is not None and first.score is not None and not first.note else None


def candidates(
    implementation: str, page: int, base: Mapping[str, int], limit: int
) -> tuple[dict[str, int], ...]:
    """The base first, then the grid laid over it, those that differ in least from it first.

    A tile that does not divide the page is launched as the largest that does, so it is tried once.

    Raises:
        UsageError: the implementation has nothing to sweep.
    """
    grid = GRIDS.get(implementation)
    if grid is None:
        message = f"--kernel {implementation}: nothing to tune; known: {', '.join(GRIDS)}"
        raise UsageError(message)
    largest = max(16, page & -page)
    found: dict[tuple[tuple[str, int], ...], dict[str, int]] = {}
    values = [[(name, value) for value in grid[name]] for name in grid]
    points = [dict(point) for point in itertools.product(*values)]
    start = {name: base.get(name, grid[name][0]) for name in grid}

    def distance(point: Mapping[str, int]) -> int:
        return sum(point[name] != start[name] for name in grid)

    for point in [start, *sorted(points, key=distance)]:
        tile = min(point["tile_tokens"], largest)
        launched = point | {"tile_tokens": tile}
        found.setdefault(tuple(sorted(launched.items())), {**base, **launched})
    return tuple(itertools.islice(found.values(), limit))


def refinements(implementation: str, best: Mapping[str, int]) -> tuple[dict[str, int], ...]:
    """The best of the grid with what only a device can decide changed."""
    name, factors = REFINED.get(implementation, ("", ()))
    if name not in best:
        return ()
    return tuple({**best, name: max(1, int(best[name] * factor))} for factor in factors)


def issue_slots(row: StaticRow) -> float:
    """Instructions that a processor must issue one after the other, per 1000 pairs of row and key.

    All warps' instructions, spread over the schedulers as far as the warps that fit keep them busy.
    A model of machine code: it knows no memory, no latency and no clock.
    """
    family = "sm" if row.target.startswith("sm_") else "gfx"
    per_program = max(1, row.registers) * LANES[family] * row.num_warps
    resident = max(1, REGISTER_FILE[family] // per_program)
    if row.operation == "decode":
        resident = min(resident, DECODE_PROGRAMS)
    return row.warp_work / min(SCHEDULERS, row.num_warps * resident)


def compiled_trial(tuning: dict[str, int], row: StaticRow, baseline: StaticRow) -> Trial:
    """A trial scored by its machine code."""
    against = (
        (row.spill_bytes, f"spills {row.spill_bytes} bytes"),
        (row.divisions, f"{row.divisions} instructions of integer division"),
        (row.narrow_loads, f"{row.narrow_loads} narrow loads"),
        (row.warp_work > baseline.warp_work, "more work than the generic kernel"),
    )
    return Trial(
        tuning=tuning,
        score=issue_slots(row) / issue_slots(baseline),
        note=next((text for wrong, text in against if wrong), ""),
        row=row,
    )


def timed_trial(
    tuning: dict[str, int], times: Sequence[tuple[str, float, float | None]], wrong: str
) -> Trial:
    """A trial scored by its times.

    Args:
        tuning: the constants.
        times: what was timed, our median in microseconds, and the speed-up over the baseline.
        wrong: why there is no ratio; empty when there is.
    """
    speed_ups = [speed_up for _, _, speed_up in times if speed_up]
    score = None
    if speed_ups and not wrong:
        score = math.exp(-sum(map(math.log, speed_ups)) / len(speed_ups))
    shown = tuple((name, median) for name, median, _ in times)
    return Trial(tuning=tuning, score=score, note=wrong, microseconds=shown)


def ranked(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Those with nothing against them first, then by score; failures last."""
    return tuple(sorted(trials, key=lambda t: (t.score is None, bool(t.note), t.score or 0.0)))
