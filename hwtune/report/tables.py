"""One table, four renderings: text, Markdown, CSV and JSON. Computes nothing."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from hwtune.domain.plain_text import one_line

Cell = str | int | float | bool | None


class Format(str, Enum):
    """How a table is printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: ``key`` for machines, ``title`` for people."""

    key: str
    title: str
    decimals: int = 2
    """Digits after the point of floats, for people only."""
    suffix: str = ""
    """Printed after each value, for people only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of plain values under named columns."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""


def render(table: Table, kind: Format) -> str:
    """The table as text, without a final newline."""
    if kind is Format.JSON:
        return json.dumps(table_records(table), indent=2, allow_nan=False)
    if kind is Format.CSV:
        return _csv(table)
    if kind is Format.MARKDOWN:
        return _markdown(table)
    return _text(table)


def table_records(table: Table) -> list[dict[str, Cell]]:
    """One dictionary per row, keyed by column."""
    keys = [column.key for column in table.columns]
    return [dict(zip(keys, row, strict=True)) for row in table.rows]


def _csv(table: Table) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([column.key for column in table.columns])
    writer.writerows(["" if cell is None else cell for cell in row] for row in table.rows)
    return buffer.getvalue().rstrip("\n")


def _markdown(table: Table) -> str:
    lines = [f"**{table.title}**", ""] if table.title else []
    lines.append("| " + " | ".join(column.title for column in table.columns) + " |")
    marks = ["---:" if _numeric(table, index) else "---" for index in range(len(table.columns))]
    lines.append("| " + " | ".join(marks) + " |")
    for row in _shown(table):
        lines.append(markdown_row(row))
    return "\n".join(lines)


def markdown_row(cells: Iterable[str]) -> str:
    """One row of a table; a cell can neither end it nor hold markup."""
    return "| " + " | ".join(markdown_cell(cell) for cell in cells) + " |"


def markdown_cell(text: str) -> str:
    """Text of others for a table's cell."""
    return markdown_text(text).replace("|", "\\|")


def markdown_text(text: str) -> str:
    """Text of others as one line without markup of HTML."""
    return one_line(text.replace("\n", " ")).replace("<", "&lt;")


def _text(table: Table) -> str:
    rows = [tuple(column.title for column in table.columns), *_shown(table)]
    widths = [max(len(row[index]) for row in rows) for index in range(len(table.columns))]
    right = [_numeric(table, index) for index in range(len(table.columns))]
    lines = [table.title] if table.title else []
    for number, row in enumerate(rows):
        cells = zip(row, widths, right, strict=True)
        padded = (cell.rjust(width) if flag else cell.ljust(width) for cell, width, flag in cells)
        lines.append("  ".join(padded).rstrip())
        if number == 0:
            lines.append("  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _numeric(table: Table, index: int) -> bool:
    cells = [row[index] for row in table.rows if row[index] is not None]
    return bool(cells) and all(
        isinstance(cell, (int, float)) and not isinstance(cell, bool) for cell in cells
    )


def _shown(table: Table) -> list[tuple[str, ...]]:
    pairs = [tuple(zip(row, table.columns, strict=True)) for row in table.rows]
    return [tuple(show_cell(cell, column) for cell, column in row) for row in pairs]


def show_cell(cell: Cell, column: Column) -> str:
    """One value as people read it."""
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:,.{column.decimals}f}{column.suffix}"
    return f"{cell:,}{column.suffix}" if isinstance(cell, int) else one_line(cell)


def columns(*specifications: str | Column) -> tuple[Column, ...]:
    """Columns from ``key=Title`` texts or ready-made columns."""
    return tuple(
        Column(key=item.partition("=")[0], title=item.partition("=")[2] or item)
        if isinstance(item, str)
        else item
        for item in specifications
    )
