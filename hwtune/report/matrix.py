"""Matrices of deployments and explanations of an observed page as tables. Computes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from hwtune.domain.inverse import Explanation
from hwtune.domain.matrix import Matrix, MatrixCell
from hwtune.report.tables import Cell, Column, Table, columns

_PAGE_COLUMNS = columns(
    "block_size=page",
    "page_bytes=page bytes",
    "state_bytes=state bytes",
    "bytes_per_token=B/token",
    Column(key="padding_pct", title="padding", suffix=" %"),
    "mamba_block_size=mamba block",
    "mamba_cache_mode=mode",
    "refusal=refused because",
)
_EXPLAIN_COLUMNS = columns(
    "model=model",
    "changes=what differs from the deployment asked about",
    "block_size=page",
    Column(key="padding_pct", title="padding", suffix=" %"),
    "state_bytes=state bytes",
)


def matrix_table(matrix: Matrix) -> Table:
    """One row per combination."""
    axes = columns(*matrix.axes)
    rows = tuple((*cell.values, *_page_cells(cell)) for cell in matrix.cells)
    return Table(columns=(*axes, *_PAGE_COLUMNS), rows=rows)


def _page_cells(cell: MatrixCell) -> tuple[Cell, ...]:
    page = cell.page
    if page is None:
        return (None, None, None, None, None, None, None, cell.refusal)
    return (
        page.block_size_tokens,
        page.attention_page_bytes,
        page.state_bytes,
        page.attention_bytes_per_token,
        page.padding_pct,
        page.mamba_block_size,
        page.mamba_cache_mode,
        None,
    )


def explanations_table(found: Sequence[Explanation], title: str = "") -> Table:
    """One row per deployment that prints the page."""
    rows = tuple(
        (
            item.model,
            ", ".join(item.changes) or "nothing: this is the page",
            item.page.block_size_tokens,
            0.0 if item.page.padding_pct is None else item.page.padding_pct,
            item.page.state_bytes,
        )
        for item in found
    )
    return Table(columns=_EXPLAIN_COLUMNS, rows=rows, title=title)


def checks_table(rows: Sequence[tuple[str, str, str, bool]], title: str) -> Table:
    """One row per compared field."""
    names = columns("field=field", "derived=derived", "resolved=resolved", "agrees=agrees")
    return Table(columns=names, rows=tuple(rows), title=title)
