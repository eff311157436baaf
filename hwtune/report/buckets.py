"""Bucket tables. Computes nothing."""

from __future__ import annotations

import dataclasses
import json

from hwtune.domain.bucket_compare import ArmBuckets, BucketComparison
from hwtune.domain.plain_text import one_line
from hwtune.report.tables import Column, Format, Table, columns, render

_ONE_ARM = columns(
    "phase=steps",
    "bucket=bucket",
    Column(key="baseline_ms", title="ms", decimals=1),
    Column(key="baseline_share_pct", title="share", decimals=1, suffix=" %"),
    "baseline_calls=calls",
)
_TWO_ARMS = columns(
    "phase=steps",
    "bucket=bucket",
    Column(key="baseline_ms", title="baseline ms", decimals=1),
    Column(key="baseline_share_pct", title="share", decimals=1, suffix=" %"),
    Column(key="candidate_ms", title="candidate ms", decimals=1),
    Column(key="candidate_share_pct", title="share", decimals=1, suffix=" %"),
    Column(key="ratio", title="candidate/baseline", decimals=3),
)
_CLOCKS = {"device": "kernel time on the device", "cpu": "operators' self time on the CPU"}


def to_text(comparison: BucketComparison, kind: Format) -> str:
    """``table``, ``markdown``, ``csv`` or ``json``, with a final newline."""
    if kind is Format.JSON:
        return json.dumps(dataclasses.asdict(comparison), indent=2, allow_nan=False) + "\n"
    text = render(_table(comparison), kind) + "\n"
    if kind is Format.CSV:
        return text
    bullet = "- " if kind is Format.MARKDOWN else "  "
    return text + "\n" + "".join(f"{bullet}{line}\n" for line in _notes(comparison))


def _table(comparison: BucketComparison) -> Table:
    names = _ONE_ARM if len(comparison.arms) == 1 else _TWO_ARMS
    rows = tuple(tuple(getattr(row, column.key) for column in names) for row in comparison.rows)
    title = f"Buckets of a profile: {_CLOCKS[comparison.arms[0].clock]}"
    return Table(columns=names, rows=rows, title=title)


def _notes(comparison: BucketComparison) -> list[str]:
    notes = [_arm_note(arm) for arm in comparison.arms]
    notes += [_other_note(arm) for arm in comparison.arms]
    if comparison.refusal is not None:
        notes.append(f"no ratios: {comparison.refusal}")
    elif comparison.other_work:
        phases = ", ".join(comparison.other_work)
        notes.append(f"no ratios in {phases} steps: the arms did not do the same work in these")
    notes.append(
        "one profile per arm: no interval, the profiler's own cost included; neither a kernel's"
        " time nor serving's"
    )
    return notes


def _arm_note(arm: ArmBuckets) -> str:
    ranks = f", mean of {arm.ranks} ranks" if arm.ranks > 1 else ""
    text = f"{arm.name}: {arm.total_us / 1e3:.1f} ms{ranks}"
    work = arm.work
    if work is None:
        return f"{text}; steps unknown (no annotations of vLLM)"
    return (
        f"{text}; {work.steps} steps, {work.prefill_tokens} prefill and {work.decode_tokens}"
        " decode tokens"
    )


def _other_note(arm: ArmBuckets) -> str:
    names: dict[str, float] = {}
    for row in arm.rows:
        for name, time in row.top if row.bucket == "other" else ():
            names[name] = names.get(name, 0.0) + time
    costliest = sorted(names.items(), key=lambda item: -item[1])[:3]
    shown = ", ".join(f"{one_line(name[:60])} {time / 1e3:.1f} ms" for name, time in costliest)
    return f"{arm.name}'s other: {shown or 'nothing'}"
