"""``hwtune serve``: what is refused before a server is planned."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hwtune.cli import build_app

TINY = str(Path(__file__).parents[2] / "examples" / "tiny-qwen3.5")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--format", "json"), "--format has no effect without --dry-run"),
        (("--watchdog", "0", "--stop-when-stuck"), "--stop-when-stuck has no effect"),
        (("--stop-when-verified", "--watchdog", "9"), "--watchdog has no effect"),
        (("--checked", "--check-rate", "0"), "--checked has no effect with --check-rate 0"),
        (("--watchdog", "nan"), "Invalid value for '--watchdog'"),
        (("--ready-timeout", "inf"), "inf is not a finite number"),
    ],
)
def test_options_without_effect_are_refused(
    options: tuple[str, ...], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = ["serve", TINY, "--profile", "cpu", *options]
    result = CliRunner().invoke(build_app(line), line)
    assert problem in f"{result.exception} {result.output}"
    assert list(tmp_path.iterdir()) == []
