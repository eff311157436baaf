"""What compiled kernels are made of, ours beside vLLM's. Counts of machine code, never times."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticShape:
    """One attention layer and its page."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    page: int
    """Tokens per page."""
    dtype: str = "bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticRow:
    """One kernel as a compiler made it. Counts of its innermost loop are per warp."""

    operation: str
    """``decode`` or ``prefill``: only rows of one operation can be compared."""
    kernel: str
    ours: bool
    target: str
    rows: int
    """Query tokens times query heads of a KV head that one program computes."""
    tile_tokens: int
    """Tokens of K and V per iteration of the loop."""
    num_warps: int
    num_stages: int
    registers: int
    """Vector registers per lane: ``ptxas -v`` or the metadata of AMD's assembly."""
    spill_bytes: int
    shared_bytes: int
    loop_instructions: int
    wide_loads: int
    """Global loads of 16 bytes per lane."""
    narrow_loads: int
    """Other global loads, those of the block table among them."""
    divisions: int
    """Instructions that only an integer division needs."""
    matrix: int
    """Matrix instructions."""
    per_16_tokens: float
    """Instructions of one warp per 16 tokens of K and V."""
    warp_work: float
    """Instructions of all warps per thousand pairs of a row and a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticReport:
    """Everything compiled for one question."""

    triton_version: str
    vllm_version: str
    shape: StaticShape
    rows: tuple[StaticRow, ...]
    notes: tuple[tuple[str, str], ...]
    """Target and what is to be known about its numbers."""


def baseline_of(row: StaticRow, rows: tuple[StaticRow, ...]) -> StaticRow | None:
    """What ours is held against: vLLM's generic kernel as vLLM launches it, the first of its rows."""
    same = [r for r in rows if (r.target, r.operation) == (row.target, row.operation)]
    return next((r for r in same if not r.ours), None)


def work_ratio(row: StaticRow, rows: tuple[StaticRow, ...]) -> float | None:
    """Instructions of all warps, relative to the baseline's; None without a baseline."""
    baseline = baseline_of(row, rows)
    return None if baseline is None else row.warp_work / baseline.warp_work


def faults(report: StaticReport) -> tuple[str, ...]:
    """Why one of our kernels is not what it should be; empty when all are.

    Spills cost memory traffic in the loop that is bound by it; divisions and narrow loads are what
    the page loop exists to avoid; and more work than the generic kernel is a reason to use that.
    """
    found = []
    for row in report.rows:
        if not row.ours:
            continue
        where = f"{row.kernel} on {row.target}"
        ratio = work_ratio(row, report.rows)
        checks = (
            (row.spill_bytes > 0, f"spills {row.spill_bytes} bytes"),
            (row.divisions > 0, f"{row.divisions} instructions of integer division in the loop"),
            (_narrower(row, report.rows), f"{row.narrow_loads} narrow loads"),
            (ratio is not None and ratio > 1, f"{ratio or 0:.2f} times the generic kernel's work"),
        )
        found += [f"{where}: {text}" for bad, text in checks if bad]
    return tuple(found)


def _narrower(row: StaticRow, rows: tuple[StaticRow, ...]) -> bool:
    """Whether loads are narrow that need not be.

    A small tile has less than 16 bytes for each lane; a kernel bound to vLLM's tile and warps, for
    equal bits, then loads as vLLM does.
    """
    if row.wide_loads and not row.narrow_loads:
        return False
    baseline = baseline_of(row, rows)
    if baseline is None:
        return True
    same = (baseline.tile_tokens, baseline.num_warps) == (row.tile_tokens, row.num_warps)
    return not same or row.narrow_loads > baseline.narrow_loads or bool(baseline.wide_loads)
