"""Recorded runs of vLLM's own schedulers, one file per release of the version table.

A file was written by ``hwtune simulate --batch scenarios.jsonl --oracle-python PYTHON`` with the
release's own Scheduler; the scenarios are random ones of tests/scheduler_scenarios.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hwtune.domain.scheduler.records import scenario_record
from hwtune.io.scenarios import read_scenario

FOLDER = Path(__file__).parent / "scheduler"
RELEASES = ("0.11.0", "0.13.0", "0.18.0", "0.23.0", "0.27.1", "0.32.0")


def recordings(release: str) -> list[dict[str, Any]]:
    text = (FOLDER / f"{release}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def replayed(recorded: dict[str, Any], release: str) -> dict[str, Any]:
    given = {**recorded, "vllm": release}
    return scenario_record(given, read_scenario(given))


@pytest.mark.parametrize("release", RELEASES)
def test_a_release_is_played_as_it_was_recorded(release: str) -> None:
    runs = recordings(release)
    assert len(runs) >= 4
    for recorded in runs:
        played = replayed(recorded, release)
        assert {key: played[key] for key in recorded} == recorded, recorded["name"]


def test_the_rules_differ_where_the_recordings_do() -> None:
    """Played by the newest rules, older recordings come out different somewhere."""
    old = [recorded for release in ("0.23.0", "0.18.0") for recorded in recordings(release)]
    assert any(replayed(run, "0.32.0")["steps"] != run["steps"] for run in old)
