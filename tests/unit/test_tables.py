"""One table in four renderings."""

from __future__ import annotations

import json

from hwtune.domain.units import format_bytes, parse_bytes
from hwtune.report.tables import Column, Format, Table, columns, render

TABLE = Table(
    columns=columns("name=what", Column(key="pct", title="padding", suffix=" %"), "ok", "count=n"),
    rows=(("a|b", 6.258, True, 3_211_264), ("c", None, False, 7)),
    title="Pages",
)


def test_text_aligns_numbers_right() -> None:
    lines = render(TABLE, Format.TABLE).splitlines()
    assert lines[0] == "Pages"
    assert lines[1].split() == ["what", "padding", "ok", "n"]
    assert lines[3] == "a|b    6.26 %  yes  3,211,264"
    assert lines[4] == "c           -  no           7"


def test_machines_get_plain_values() -> None:
    assert json.loads(render(TABLE, Format.JSON))[0] == {
        "name": "a|b",
        "pct": 6.258,
        "ok": True,
        "count": 3_211_264,
    }
    assert render(TABLE, Format.CSV).splitlines() == [
        "name,pct,ok,count",
        "a|b,6.258,True,3211264",
        "c,,False,7",
    ]


def test_markdown_escapes_bars() -> None:
    lines = render(TABLE, Format.MARKDOWN).splitlines()
    assert lines[0] == "**Pages**"
    assert lines[3] == "| --- | ---: | --- | ---: |"
    assert lines[4].startswith("| a\\|b |")


def test_sizes() -> None:
    assert format_bytes(3_211_264) == "3.06 MiB"
    assert format_bytes(512) == "512 B"
    assert parse_bytes("8GiB") == 8 * 2**30
    assert parse_bytes("64 GB") == 64 * 10**9
    assert parse_bytes("1073741824") == 2**30
    assert [parse_bytes(text) for text in ("", "GiB", "8 parsecs", "nan", "-1GiB", "1e99")] == (
        [None] * 6
    )
