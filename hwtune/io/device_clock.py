"""``device_clock.csv``: what ``nvidia-smi`` sampled while a run went on."""

from __future__ import annotations

import csv
import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hwtune.domain.device_clock import ClockSample

CLOCK_FILE: Final = "device_clock.csv"
FIELDS: Final = ("timestamp", "index", "clocks.sm", "temperature.gpu")
"""Of ``nvidia-smi --query-gpu``; the reasons for the clocks come last, under the name that the
driver knows."""
REASONS: Final = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""Since driver 535, and before."""
_SLOWED: Final = 0x08 | 0x20 | 0x40 | 0x80
"""Hardware slow-down, software and hardware thermal slow-down, power brake (nvml.h,
nvmlClocksEventReason*)."""


def read_clocks(run_dir: Path) -> tuple[ClockSample, ...]:
    """All samples that can be read; a line that a crash cut short is none."""
    path = run_dir / CLOCK_FILE
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    return tuple(_samples(text))


def _samples(text: str) -> Iterator[ClockSample]:
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        try:
            stamp, index, clock, temperature, reasons = row
            moment = datetime.datetime.strptime(stamp, "%Y/%m/%d %H:%M:%S.%f")
            yield ClockSample(
                unix_s=moment.timestamp(),
                device=index,
                clock_mhz=float(clock),
                temperature_c=float(temperature),
                slowed=bool(int(reasons, 16) & _SLOWED),
            )
        except ValueError:
            continue
