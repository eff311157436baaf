"""Ctrl-C, SIGTERM and SIGKILL lose no finished request, and the run can be continued."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hwtune.adapters.load.mock_frames import Behaviour
from hwtune.adapters.load.mock_thread import running_mock

STEADY = Behaviour(ttft_s=0.02, tpot_s=0.001)
HWTUNE = [sys.executable, "-c", "from hwtune.cli import main; main()", "ab-bench", "serving"]


def _until(path: Path, lines: int) -> None:
    """Waits until the journal has so many lines."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if path.exists() and path.read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.01)
    pytest.fail(f"{path} did not reach {lines} lines")


@pytest.mark.parametrize(
    ("sent", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_an_interrupted_run_keeps_its_records_and_goes_on(
    tmp_path: Path, sent: signal.Signals, status: int
) -> None:
    run_dir = tmp_path / "run"
    with running_mock(STEADY) as (url_a, _), running_mock(STEADY) as (url_b, _):
        design = [
            *("m", "--baseline-url", url_a, "--candidate-url", url_b, "--run-dir", str(run_dir)),
            *("--tier", "100-200", "--blocks", "6", "--prompts-per-tier", "24"),
            *("--output-tokens", "8", "--warm-up", "1", "--vocab-size", "1000", "--settle", "0"),
        ]
        child = subprocess.Popen([*HWTUNE, *design], stderr=subprocess.PIPE, text=True)
        _until(run_dir / "requests.jsonl", 12)
        child.send_signal(sent)
        _, shown = child.communicate(timeout=30)
        kept = [json.loads(line) for line in (run_dir / "requests.jsonl").read_text().splitlines()]
        assert child.returncode == status, shown
        assert len(kept) >= 12 and "Traceback" not in shown
        if status == 130:
            assert "missing: " in shown and f"--resume {run_dir}" in shown
            assert json.loads((run_dir / "comparison.json").read_text())["tiers"]
        command = [*HWTUNE, "--resume", str(run_dir), "--format", "json"]
        again = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert again.returncode in (0, 1), again.stderr
    tier = json.loads(again.stdout)["tiers"][0]
    assert tier["pairs_done"] == 6 and tier["prompts"] == 24
