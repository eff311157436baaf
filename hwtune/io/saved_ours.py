"""One arm of a run of ours as saved runs, one per tier: to compare arms of different runs."""

from __future__ import annotations

import hashlib
from pathlib import Path

from hwtune.domain.bench import RequestRecord
from hwtune.domain.errors import InputError
from hwtune.domain.launch import Arm
from hwtune.domain.pairing import latest_attempts
from hwtune.domain.saved_run import SavedRequest, SavedRun
from hwtune.domain.workload import Design
from hwtune.io.records import read_design, read_requests


def our_runs(run_dir: Path, arm: Arm) -> dict[str, SavedRun]:
    """Tier name -> what one arm answered.

    Raises:
        InputError: not a run directory, damaged, or nothing was measured.
    """
    design, records = read_design(run_dir), read_requests(run_dir)
    runs: dict[str, SavedRun] = {}
    for tier in design.tiers:
        mine = [r for r in latest_attempts(records, tier.name) if r.arm == arm]
        if mine:
            runs[tier.name] = _run(f"{run_dir}:{arm}", design, mine)
    if not runs:
        message = f"{run_dir}: nothing was measured yet"
        raise InputError(message)
    return runs


def _run(source: str, design: Design, records: list[RequestRecord]) -> SavedRun:
    ordered = sorted(records, key=lambda record: (record.pair, record.prompt))
    started = min(record.started_unix_s for record in ordered)
    ended = max(record.ended_unix_s for record in ordered)
    tokens = sum(record.output_tokens or 0 for record in ordered)
    content = f"{source} {started} {[record.text_sha256 for record in ordered]}"
    return SavedRun(
        source=source,
        sha256=hashlib.sha256(content.encode()).hexdigest(),
        workload={
            "client": "hwtune ab-bench",
            "model": design.model,
            "requests": len(ordered),
            "endpoint": design.endpoint,
            "load": design.arrival,
            "concurrency": design.concurrency,
            "request rate": design.rate_per_s,
        },
        requests=tuple(map(_request, ordered)),
        # Blocks of the other arm and rests lie between: a rate over the whole time means nothing.
        output_throughput=0.0 if len({r.pair for r in ordered}) > 1 else tokens / (ended - started),
        started_unix_s=started,
        ended_unix_s=ended,
    )


def _request(record: RequestRecord) -> SavedRequest:
    return SavedRequest(
        input_tokens=record.prompt_tokens or 0,
        output_tokens=record.output_tokens or 0,
        ttft_s=record.ttft_s or 0.0,
        e2el_s=record.e2el_s or 0.0,
        text=record.text,
        error=f"{record.failure}: {record.detail}" if record.failure else "",
        start_s=record.started_unix_s,
        key=record.prompt_id,
    )
