"""Text from outside that is to be shown: nothing in it steers a terminal or passes for a line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hwtune.domain.bench import Comparison, Gate
from hwtune.domain.collecting import EvidenceCollector
from hwtune.domain.markers import check
from hwtune.domain.plain_text import harmless, one_line
from hwtune.io.marker_sets import load_markers
from hwtune.io.records import write_text
from hwtune.report.bench import to_markdown, to_table
from hwtune.report.markers import report_to_text

EVIL = "<b>\x1b]0;owned\x07\x1b[2J\r\n  ok           run: markers\x9b31m\u202e"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mb\x07", "a\\x1b[31mb\\x07"),
        ("c\x9bd\x7f", "c\\u009bd\\u007f"),
        ("left\u202eright\u2066", "left\\u202eright\\u2066"),
        ("half \ud800", "half \\ud800"),
        ("Grüße 模型 🙂 — ±2 %", "Grüße 模型 🙂 — ±2 %"),
    ],
)
def test_only_what_steers_is_escaped(text: str, shown: str) -> None:
    assert harmless(text) == one_line(text) == shown


def test_lines_stay_lines_where_they_may() -> None:
    assert harmless("a\n\tb\rc") == "a\n\tb\\rc"
    assert one_line("a\n\tb") == "a\\n\\tb"


def test_json_that_keeps_its_characters_stays_json() -> None:
    text = json.dumps({"name": EVIL}, ensure_ascii=False)
    assert json.loads(harmless(text)) == {"name": EVIL}


@pytest.mark.parametrize("show", [to_table, to_markdown])
def test_a_servers_message_neither_steers_nor_adds_a_line(
    show: Callable[[Comparison], str],
) -> None:
    gate = Gate(name="no failed request", state="failed", evidence=EVIL)
    plain = Gate(name="no failed request", state="failed", evidence="x")
    good, bad = (
        show(
            Comparison(
                model=model,
                confidence=0.95,
                margin=0.02,
                conditions={"server": model},
                gates=(one,),
                tiers=(),
                notes=(model,),
            )
        )
        for model, one in (("m", plain), (EVIL, gate))
    )
    assert bad.count("\n") == good.count("\n")
    assert ("<b>" in bad) == (show is to_table)
    assert harmless(bad) == bad


def test_a_facts_value_adds_no_line_to_a_report() -> None:
    collector = EvidenceCollector(load_markers())
    line = "INFO 11-30 06:51:30 [api_server.py:1] vLLM API server version 0.25.1"
    collector.feed("a\n\x1b[2Jserver.log", [(1, line)])
    evidence = collector.evidence()
    text = report_to_text(check(evidence, None, require_kernel_hits=False), evidence)
    assert "vllm_version" in text
    assert "a\\n\\x1b[2Jserver.log" in text
    assert harmless(text) == text


def test_a_written_file_steers_no_pager(tmp_path: Path) -> None:
    write_text(tmp_path / "report.md", f"# {EVIL}\n")
    assert "\x1b" not in (tmp_path / "report.md").read_text()
