"""Progress: plain lines without a terminal, the time left by the pace so far."""

from __future__ import annotations

import pytest

from hwtune.report.progress import PlainWatcher, time_left, watching


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
        watcher.block(done, 4, "text")
        now[0] += 10
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["[1/4] text", "[2/4] text · 20 s left", "[4/4] text"]


def test_without_a_terminal_there_is_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with watching() as watcher:
        watcher.line("hello")
        watcher.block(1, 2, "done")
    captured = capsys.readouterr()
    assert captured.err == "hello\n[1/2] done\n" and captured.out == ""
