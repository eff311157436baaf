"""The step table and the HTML page of a run; the page also in a browser, where there is one."""

from __future__ import annotations

import html.parser
import json
import re
from pathlib import Path
from typing import Any

import pytest

from hwtune.domain.kernel import KernelConditions, KernelSpec, LayerTraits
from hwtune.domain.scheduler.classify import RunnerOptions
from hwtune.domain.scheduler.kernel_paths import KernelPaths
from hwtune.domain.scheduler.play import play
from hwtune.domain.scheduler.timeline import Timeline
from hwtune.domain.scheduler.values import CacheGroup, Scenario, SchedulerConfig
from hwtune.domain.scheduler.workloads import WorkItem, Workload, parse_request
from hwtune.report.step_table import step_table
from hwtune.report.tables import Format, render
from hwtune.report.timeline import timeline_html
from tests.support import BROWSER, drawn

PREFILL = KernelSpec(
    name="vendor_prefill",
    implementation="prefill.test",
    when=KernelConditions(min_query_len=2, max_query_len=4096),
    source="test",
)
LAYER = LayerTraits(
    num_heads=1,
    num_kv_heads=1,
    head_size=64,
    dtype="bfloat16",
    kv_cache_dtype="auto",
    block_size=16,
)


def played(
    *requests: str, budget: int = 6, limit: int = 100, ascend: bool = False, blocks: int = 100
) -> Timeline:
    config = SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=4, max_model_len=8192)
    group = CacheGroup(kind="full", block_size_tokens=16)
    timeline = Timeline(
        paths=KernelPaths((PREFILL,), LAYER),
        limit=limit,
        ascend=RunnerOptions() if ascend else None,
    )
    items = tuple(parse_request(text, at) for at, text in enumerate(requests))
    workload = Workload(items=items, pacing="stepped", title="")
    play(Scenario(config=config, num_blocks=blocks, groups=(group,)), workload, (timeline,))
    return timeline


def cells(timeline: Timeline) -> list[dict[str, Any]]:
    table = step_table(timeline, 100)
    return [dict(zip([c.key for c in table.columns], row, strict=True)) for row in table.rows]


def test_the_article_example_is_cut_into_five_six_and_one() -> None:
    rows = cells(played("3:3", "12:2@2"))
    chunks = [row["chunk"] for row in rows if row["request"] == "B" and row["work"] == "prompt"]
    assert chunks == [5, 6, 1]
    mixed = [row for row in rows if row["budget_left"] == 0 and row["cursor"] == "0>5"]
    assert mixed[0]["blocks"] == "1"
    paths = [row["path"] for row in rows if row["path"]]
    assert (
        paths
        == ["vendor_prefill", "vLLM's own", "vLLM's own", "vendor_prefill"] + ["vLLM's own"] * 2
    )


def test_on_ascend_the_table_shows_states() -> None:
    rows = cells(played("3:3", "12:2@2", ascend=True))
    states = [row["path"] for row in rows if row["path"]]
    assert states[:3] == ["PrefillNoCache", "DecodeOnly", "ChunkedPrefill"]


def test_the_table_fits_a_terminal() -> None:
    timeline = played("5000:3", "12000:300@2", "700:2@3", budget=8192, limit=40, blocks=2000)
    for line in render(step_table(timeline, 100), Format.TABLE).splitlines():
        assert len(line) <= 100


def document(timeline: Timeline, title: str = "a model") -> str:
    return timeline_html(timeline, title=title, subtitle="how", budget=6)


def data_of(page: str) -> dict[str, Any]:
    match = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert match is not None
    found: dict[str, Any] = json.loads(match[1])
    return found


def test_the_page_holds_every_step_and_loads_nothing() -> None:
    timeline = played("3:3", "12:2@2")
    page = document(timeline)
    data = data_of(page)
    assert [step["total"] for step in data["steps"]] == [3, 1, 6, 6, 1, 1]
    assert [request["name"] for request in data["requests"]] == ["A", "B"]
    assert sum(path["steps"] for path in data["paths"]) == data["counted"] == 6
    assert not re.search(
        r"(src|href)\s*=|https?://|@import|fetch\(", page.replace("www.w3.org", "")
    )


class Elements(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids |= {value for name, value in attrs if name == "id" and value}
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_document_is_well_formed_and_has_what_its_script_looks_for() -> None:
    page = document(played("3:3"))
    parser = Elements()
    parser.feed(page)
    assert parser.open == []
    assert set(re.findall(r'byId\("(\w+)"\)', page)) <= parser.ids


def test_a_hostile_name_cannot_end_the_script() -> None:
    timeline = played("3:3")
    name = "</script><b>"
    timeline.items[name] = WorkItem(id=name, prompt_tokens=3, output_tokens=3)
    page = document(timeline, title="</script><script>alert(1)</script>")
    assert page.count("</script>") == 2
    assert data_of(page)["title"].startswith("</script>")


def test_waiting_and_preemption_are_marked() -> None:
    data = data_of(document(played("40:60", "40:60", "40:60", budget=64, blocks=12)))
    assert any(request["waiting"] for request in data["requests"])
    assert any(step["preempted"] for step in data["steps"])
    for request in data["requests"]:
        for start, end in request["waiting"]:
            assert 0 <= start < end <= len(data["steps"])


def test_steps_beyond_the_limit_are_counted_and_not_kept() -> None:
    timeline = played("3:30", limit=5)
    data = data_of(document(timeline))
    assert (len(data["steps"]), data["total_steps"]) == (5, 30)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_a_browser_draws_it(tmp_path: Path) -> None:
    path = tmp_path / "timeline.html"
    page = document(played("3:3", "12:2@2", budget=6))
    # Points at the third step of request A and reads what the page says of it.
    probe = (
        "<script>select(2, 0); const c = document.getElementById('chart');"
        "const lit = new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size;"
        "document.body.dataset.lit = String(lit > 20);</script></body>"
    )
    path.write_text(page.replace("</body>", probe), encoding="utf-8")
    document_drawn = drawn(path, tmp_path / "browser")
    assert 'data-ready="6"' in document_drawn
    assert 'data-lit="true"' in document_drawn
    assert "decode: 1 tokens, cursor 4 to 5" in document_drawn
    assert "vendor_prefill</b> 2 steps, 33.3 %" in document_drawn
