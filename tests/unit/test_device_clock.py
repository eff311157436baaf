"""Clocks of the device: sampled by its own tool, judged per arm."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import pytest

from hwtune.adapters.load.clock_watch import watching_clocks
from hwtune.domain.bench import RequestRecord
from hwtune.domain.device_clock import ClockSample, clock_gate
from hwtune.domain.launch import Arm
from hwtune.io.device_clock import CLOCK_FILE, read_clocks


def _record(arm: Arm, start_s: float) -> RequestRecord:
    return RequestRecord(
        arm=arm,
        phase="measured",
        tier="t",
        pair=0,
        prompt=0,
        prompt_id="p",
        started_unix_s=start_s,
        ended_unix_s=start_s + 10,
    )


RECORDS = [_record("baseline", 0.0), _record("candidate", 100.0)]


def _samples(start_s: float, clock_mhz: float, slowed: int = 0) -> list[ClockSample]:
    return [
        ClockSample(
            unix_s=start_s + k,
            device="0",
            clock_mhz=clock_mhz,
            temperature_c=60.0,
            slowed=k < slowed,
        )
        for k in range(10)
    ]


@pytest.mark.parametrize(
    ("baseline", "candidate", "state"),
    [
        (_samples(0, 1980), _samples(100, 1965), "passed"),
        (_samples(0, 1980), _samples(100, 1800), "failed"),
        (_samples(0, 1980), _samples(100, 1980, slowed=2), "failed"),
        (_samples(0, 1980), _samples(50, 300), "not checked"),
        ([], [], "not checked"),
    ],
)
def test_the_arms_ran_at_one_clock_or_are_not_comparable(
    baseline: list[ClockSample], candidate: list[ClockSample], state: str
) -> None:
    gate = clock_gate([*baseline, *candidate], RECORDS)
    assert gate.state == state
    assert state == "not checked" or "baseline 1980 MHz (median of 10 samples" in gate.evidence


def test_what_nvidia_smi_prints_is_read_and_torn_lines_are_not(tmp_path: Path) -> None:
    lines = [
        "2026/11/30 10:00:00.500, 0, 1980, 61, 0x0000000000000000",
        "2026/11/30 10:00:01.000, 0, 1410, 88, 0x0000000000000040",
        "2026/11/30 10:00:01.500, 0, 1755, 70, 0x0000000000000004",
        "2026/11/30 10:00:02.000, 0, [N/A], 70, 0x0000000000000000",
        "2026/11/30 10:00:02.5",
    ]
    (tmp_path / CLOCK_FILE).write_text("\n".join(lines))
    samples = read_clocks(tmp_path)
    assert [sample.clock_mhz for sample in samples] == [1980, 1410, 1755]
    assert [sample.slowed for sample in samples] == [False, True, False]
    moment = datetime.datetime(2026, 11, 30, 10, 0, 0, 500_000)
    assert samples[0].unix_s == moment.timestamp()
    assert read_clocks(tmp_path / "none") == ()


def test_an_older_driver_is_asked_by_the_older_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bin" / "nvidia-smi"
    fake.parent.mkdir()
    fake.write_text(
        "#!/bin/sh\n"
        'case "$*" in *clocks_event_reasons*) exit 2;; esac\n'
        'echo "2026/11/30 10:00:00.500, 0, 1980, 61, 0x0"\n'
        'case "$*" in *-lms*) exec sleep 60;; esac\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}{os.pathsep}{os.environ['PATH']}")
    with watching_clocks(tmp_path):
        while not read_clocks(tmp_path):
            pass
    assert [sample.device for sample in read_clocks(tmp_path)] == ["0"]
