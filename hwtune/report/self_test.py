"""The client's own accuracy as text or JSON. Computes nothing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from hwtune.domain.client_check import ClientCheck

_HEADER = (
    "streams",
    "requests",
    "TTFT mean / p99 ms",
    "true",
    "TPOT ms",
    "true",
    "delivered",
    "CPU s",
    "verdict",
)


def to_table(checks: Sequence[ClientCheck]) -> str:
    """One line per concurrency: reported beside true."""
    rows = [_HEADER, *map(_cells, checks)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def _cells(check: ClientCheck) -> tuple[str, ...]:
    ttft, tpot = check.ttft, check.tpot
    return (
        str(check.streams),
        str(check.requests),
        f"{ttft.mean_s * 1e3:.1f} / {ttft.p99_s * 1e3:.1f}",
        f"{ttft.true_mean_s * 1e3:.1f} / {ttft.true_p99_s * 1e3:.1f}",
        f"{tpot.mean_s * 1e3:.2f}",
        f"{tpot.true_mean_s * 1e3:.2f}",
        f"{check.delivered * 100:.0f} %",
        f"{check.cpu_s:.2f}",
        "ok" if check.passed else f"off: {', '.join(check.problems)}",
    )


def to_json(checks: Sequence[ClientCheck], wrong_faults: Sequence[str]) -> str:
    """All numbers, in seconds."""
    data = {
        "streams": [dataclasses.asdict(check) for check in checks],
        "faults_not_recognised": list(wrong_faults),
    }
    return json.dumps(data, indent=2) + "\n"
