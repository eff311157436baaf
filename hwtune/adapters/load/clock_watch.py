"""Samples the device's clocks beside a run, by NVIDIA's own tool, into the run directory."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hwtune.io.device_clock import CLOCK_FILE, FIELDS, REASONS

_PERIOD_MS = 500


@contextmanager
def watching_clocks(run_dir: Path) -> Iterator[None]:
    """Runs ``nvidia-smi`` until the context ends; without it, or where it fails, nothing."""
    command = _command()
    if command is None:
        yield
        return
    with (run_dir / CLOCK_FILE).open("ab") as file:
        sampler = subprocess.Popen(
            [*command, "-lms", str(_PERIOD_MS)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            sampler.terminate()
            sampler.wait(timeout=10)


def _command() -> list[str] | None:
    """The query that this driver understands."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    for reasons in REASONS:
        fields = ",".join((*FIELDS, reasons))
        command = [program, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
        try:
            tried = subprocess.run(command, capture_output=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if tried.returncode == 0:
            return command
    return None
