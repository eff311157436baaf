"""A run of ours in the format of ``vllm bench serve``, for the tools that read it."""

from __future__ import annotations

from pathlib import Path

from hwtune.domain.bench import ARMS
from hwtune.domain.errors import InputError
from hwtune.domain.pairing import latest_attempts
from hwtune.domain.vllm_result import vllm_result
from hwtune.io.records import read_design, read_requests, write_json


def export_run(run_dir: Path, output: Path) -> list[Path]:
    """``OUTPUT/ARM/result_TIER.json`` for every arm and tier that was measured.

    Raises:
        InputError: not a run directory, damaged, or nothing was measured.
        ExternalFailureError: a file cannot be written.
    """
    design, records = read_design(run_dir), read_requests(run_dir)
    written = []
    for tier in design.tiers:
        latest = latest_attempts(records, tier.name)
        for arm in ARMS:
            mine = [record for record in latest if record.arm == arm]
            mine.sort(key=lambda record: (record.pair, record.prompt))
            if mine:
                path = output / arm / f"result_{tier.name}.json"
                write_json(path, vllm_result(design, tier, arm, mine))
                written.append(path)
    if not written:
        message = f"{run_dir}: nothing was measured yet"
        raise InputError(message)
    return written
