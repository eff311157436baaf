"""Did the device run at one speed in both arms? By what its driver sampled while they ran."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from hwtune.domain.bench import ARMS, Gate, RequestRecord
from hwtune.domain.launch import Arm
from hwtune.domain.stats import median

MOST_SLOWED: Final = 0.05
"""Share of an arm's samples in which the device slowed itself for heat or power supply."""
MOST_APART: Final = 0.03
"""Between the median clocks of the arms. Boost steps of NVIDIA's devices are 15 MHz, about 1 %."""
NAME: Final = "no clock or thermal drift"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSample:
    """What a device said of itself at one moment."""

    unix_s: float
    device: str
    clock_mhz: float
    temperature_c: float
    slowed: bool
    """It ran below its clocks for heat or power brake; a power cap alone is normal under load."""


def clock_gate(samples: Sequence[ClockSample], records: Iterable[RequestRecord]) -> Gate:
    """Red when the device slowed itself, or ran the arms at different clocks."""
    measured = [record for record in records if record.phase == "measured"]
    mine = {arm: _during(samples, [r for r in measured if r.arm == arm]) for arm in ARMS}
    if not all(mine.values()):
        return Gate(name=NAME, state="not checked", evidence="no device told its clocks")
    clocks = {arm: median([sample.clock_mhz for sample in mine[arm]]) or 0.0 for arm in ARMS}
    slowed = {arm: sum(s.slowed for s in mine[arm]) / len(mine[arm]) for arm in ARMS}
    shown = ", ".join(_shown(arm, clocks[arm], slowed[arm], mine[arm]) for arm in ARMS)
    apart = max(clocks.values()) > min(clocks.values()) * (1 + MOST_APART)
    bad = apart or max(slowed.values()) > MOST_SLOWED
    return Gate(name=NAME, state="failed" if bad else "passed", evidence=shown)


def _during(samples: Sequence[ClockSample], records: Sequence[RequestRecord]) -> list[ClockSample]:
    """Samples taken while a request of the arm was under way."""
    spans = sorted((record.started_unix_s, record.ended_unix_s) for record in records)
    return [s for s in samples if any(start <= s.unix_s <= end for start, end in spans)]


def _shown(arm: Arm, clock_mhz: float, slowed: float, samples: Sequence[ClockSample]) -> str:
    hottest = max(sample.temperature_c for sample in samples)
    return (
        f"{arm} {clock_mhz:.0f} MHz (median of {len(samples)} samples, up to {hottest:.0f} C,"
        f" slowed in {slowed * 100:.0f} %)"
    )
