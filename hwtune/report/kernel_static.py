"""The static table of kernels as text, Markdown, CSV or JSON. Computes nothing."""

from __future__ import annotations

from hwtune.domain.kernel_static import StaticReport, StaticRow, faults, work_ratio
from hwtune.report.tables import Cell, Column, Format, Table, render

_COLUMNS = (
    Column(key="target", title="target"),
    Column(key="operation", title="op"),
    Column(key="kernel", title="kernel"),
    Column(key="tile_tokens", title="tile"),
    Column(key="num_warps", title="warps"),
    Column(key="registers", title="regs"),
    Column(key="spill_bytes", title="spill B"),
    Column(key="shared_bytes", title="shared B"),
    Column(key="loop_instructions", title="loop"),
    Column(key="wide_loads", title="16-B loads"),
    Column(key="narrow_loads", title="others"),
    Column(key="divisions", title="div"),
    Column(key="per_16_tokens", title="instr/16 tok", decimals=0),
    Column(key="warp_work", title="work", decimals=0),
    Column(key="work_ratio", title="of generic", decimals=2, suffix="x"),
)


def to_text(report: StaticReport, form: Format) -> str:
    """The table, and for people what it counts and what it does not say."""
    rows = tuple(_cells(row, report) for row in report.rows)
    shape = report.shape
    title = (
        f"scope: machine code, not time; {shape.num_heads}/{shape.num_kv_heads}/{shape.head_size} "
        f"{shape.dtype}, page {shape.page}; Triton {report.triton_version}, "
        f"vLLM {report.vllm_version}"
    )
    text = render(Table(columns=_COLUMNS, rows=rows, title=title), form) + "\n"
    return text if form in (Format.JSON, Format.CSV) else text + _legend(report)


def _cells(row: StaticRow, report: StaticReport) -> tuple[Cell, ...]:
    values = [getattr(row, column.key) for column in _COLUMNS[:-1]]
    return (*values, work_ratio(row, report.rows))


def _legend(report: StaticReport) -> str:
    lines = [
        "",
        "loop: instructions of one iteration for one warp; others: narrower global loads; div: only",
        "for integer division; work: instructions of all warps per 1000 pairs of a row and a key.",
        *(f"{target}: {note}" for target, note in report.notes),
        *(f"not as it should be: {fault}" for fault in faults(report)),
    ]
    return "\n".join(lines) + "\n"
