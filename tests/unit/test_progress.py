"""Progress: plain lines without a terminal, the time left by the pace so far."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from hwtune.domain.so_far import BlockNews
from hwtune.report.progress import PlainWatcher, bars, time_left, watching


def _news(done: int, total: int, standing: str = "") -> BlockNews:
    return BlockNews(
        done=done,
        total=total,
        tier="4-8K",
        tier_done=done,
        tier_total=total,
        line="text",
        standing=standing,
    )


@pytest.mark.parametrize(
    ("seconds", "text"), [(40.2, "40 s"), (89, "89 s"), (120, "2 min"), (9000, "2.5 h")]
)
def test_time_is_rounded_as_people_say_it(seconds: float, text: str) -> None:
    assert time_left(seconds) == text


def test_the_time_left_follows_the_pace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr("hwtune.report.progress.time.monotonic", lambda: now[0])
    watcher = PlainWatcher()
    for done in (1, 2, 4):
        watcher.block(_news(done, 4))
        now[0] += 10
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["[1/4] text", "[2/4] text · 20 s left", "[4/4] text"]


def test_without_a_terminal_there_is_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with watching() as watcher:
        watcher.line("hello")
        watcher.block(_news(1, 2, "change [+1.0, +2.0] %"))
    captured = capsys.readouterr()
    assert (
        captured.err == "hello\n[1/2] text · so far change [+1.0, +2.0] %\n" and captured.out == ""
    )


def test_a_terminal_shows_one_bar_per_tier_with_its_interval_and_keeps_the_lines() -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=120)
    with bars(console) as watcher:
        watcher.line("baseline: ready")
        watcher.block(_news(1, 12, "change [-3.0, +1.0] % (provisional)"))
        watcher.block(_news(2, 12))
    text = shown.getvalue()
    assert "baseline: ready" in text and "all blocks" in text
    assert "4-8K" in text and "2/12" in text
    assert "change [-3.0, +1.0] % (provisional)" in text
