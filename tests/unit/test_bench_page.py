"""The page of an A/B run: what it holds, what it withholds, and that a browser draws it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hwtune.domain.bench import Comparison, Gate, RequestRecord
from hwtune.domain.bench_series import series
from hwtune.domain.compare import compare
from hwtune.domain.launch import Arm
from hwtune.domain.server_compare import Difference, ServerComparison
from hwtune.domain.workload import Design, Tier
from hwtune.report.bench_page import bench_page
from tests.support import BROWSER, drawn

TEXT = "an answer of a few different words, long enough to be judged"
DESIGN = Design(
    model="m</script><b>",
    profile="cpu",
    flags=(),
    mode="concurrent servers",
    vocab_size=1000,
    tiers=(Tier(name="a", least_tokens=20, most_tokens=40),),
    pairs=6,
    prompts_per_tier=6,
    output_tokens=4,
    concurrency=1,
)
ARMS = ServerComparison(
    differences=(Difference(fact="attention_block_size", a="896", b="832", declared=True),),
    same=("vllm_version",),
    same_values=(("vllm_version", "0.32.0"),),
    problems=(),
)


def _record(arm: Arm, pair: int, ttft_s: float) -> RequestRecord:
    at = 1000.0 + 2 * pair + (arm == "candidate")
    return RequestRecord(
        arm=arm, phase="measured", tier="a", pair=pair, prompt=0, prompt_id=str(pair),
        started_unix_s=at, ended_unix_s=at + ttft_s + 0.3, ttft_s=ttft_s, e2el_s=ttft_s + 0.3,
        chunk_times_s=(ttft_s, ttft_s + 0.1, ttft_s + 0.2, ttft_s + 0.3), prompt_tokens=30,
        output_tokens=4, text=TEXT, finish_reason="length",
    )  # fmt: skip


RECORDS = [
    record
    for pair in range(6)
    for record in (_record("baseline", pair, 0.1 + pair * 1e-4), _record("candidate", pair, 0.05))
]


def _page(gates: tuple[Gate, ...] = (), records: list[RequestRecord] = RECORDS) -> str:
    comparison: Comparison = compare(DESIGN, records, gates)
    return bench_page(comparison, series(comparison, DESIGN, records), records, ARMS)


def _data(page: str) -> dict[str, Any]:
    match = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert match is not None
    found: dict[str, Any] = json.loads(match[1])
    return found


def test_every_request_and_every_pair_of_blocks_is_a_point() -> None:
    tier = _data(_page())["tiers"][0]
    assert len(tier["points"]) == 12
    assert tier["points"][0][:4] == [0, "measured", 0, 0.0]
    pairs, changes = zip(*tier["changes"]["ttft"], strict=True)
    assert pairs == (0, 1, 2, 3, 4, 5)
    assert changes[0] == pytest.approx(-50.0)
    ttft = next(metric for metric in tier["metrics"] if metric["name"] == "ttft")
    assert ttft["kind"] == "faster"
    assert ttft["low"] < ttft["change"] < ttft["high"] < 0


def test_a_red_gate_takes_the_changes_along() -> None:
    red = Gate(name="markers of the candidate", state="failed", evidence="no kernel hit")
    data = _data(_page((red,)))
    assert data["tiers"][0]["changes"] == {}
    assert {metric["change"] for metric in data["tiers"][0]["metrics"]} == {None}
    assert len(data["tiers"][0]["points"]) == 12
    assert ["run", *(red.name, "failed", red.evidence)] in data["gates"]


def test_failures_are_counted_and_their_answers_are_no_points() -> None:
    failed = replace(
        RECORDS[0], failure="http status", detail="500", ttft_s=None, e2el_s=None, chunk_times_s=()
    )
    data = _data(_page(records=[failed, *RECORDS[1:]]))
    assert (data["failed"], data["failures"][0][2]) == (1, "http status")
    assert len(data["tiers"][0]["points"]) == 11


def test_the_page_loads_nothing_and_no_text_ends_its_script() -> None:
    page = _page()
    assert not re.search(r"(?:src|href)=|https?://(?!www\.w3\.org/2000/svg)|@import|url\(", page)
    assert page.count("</script>") == 2
    assert _data(page)["model"] == DESIGN.model


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_a_browser_draws_it(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(_page(), encoding="utf-8")
    shown = drawn(path, tmp_path / "browser")
    assert 'data-pictures="4"' in shown
    assert '<td class="faster">faster</td>' in shown
    assert "attention_block_size" in shown and "1 facts alike" in shown


def _banner(page: str, folder: Path) -> str:
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    match = re.search(r'<div id="verdict" class="([^"]*)"', drawn(path, folder / "browser"))
    assert match is not None
    return match[1]


def _swapped(record: RequestRecord) -> RequestRecord:
    return replace(record, arm="candidate" if record.arm == "baseline" else "baseline")


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
@pytest.mark.parametrize(
    ("records", "classes"),
    [
        (RECORDS, "banner passed"),
        ([_swapped(record) for record in RECORDS], "banner failed"),
        (RECORDS[:4], "banner"),
        ([], "banner"),
    ],
    ids=["faster", "slower", "inconclusive", "nothing"],
)
def test_the_banner_is_green_for_a_gain_alone(
    tmp_path: Path, records: list[RequestRecord], classes: str
) -> None:
    assert _banner(_page(records=records), tmp_path) == classes


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_long_names_and_reasons_do_not_widen_the_page(tmp_path: Path) -> None:
    red = Gate(name="markers of the candidate", state="failed", evidence="x" * 3000)
    page = _page((red,)).replace(f'"{DESIGN.model}'.replace("<", "\\u003c"), f'"{"m" * 500}')
    assert "m" * 500 in page
    look = "document.body.dataset.wide = document.documentElement.scrollWidth > innerWidth"
    path = tmp_path / "report.html"
    path.write_text(page.replace("</body>", f"<script>{look}</script></body>"), encoding="utf-8")
    assert 'data-wide="false"' in drawn(path, tmp_path / "browser")
