"""``hwtune serve`` of a program that stands for vLLM, and the places that break under it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support import free_port, processes_of

ROOT = Path(__file__).parents[2]
DRIVER = Path(__file__).with_name("serve_fake.py")


@dataclass
class FakeRun:
    """A ``hwtune serve`` whose vLLM is a small program."""

    process: subprocess.Popen[str]
    run_dir: Path
    port: int
    said: list[str] = field(default_factory=list)

    def wait_for(self, text: str) -> str:
        """The first line on standard error that holds a text."""
        assert self.process.stderr is not None
        with self._deadline():
            for line in self.process.stderr:
                self.said.append(line)
                if text in line:
                    return line
        raise AssertionError("".join(self.said))

    @contextlib.contextmanager
    def _deadline(self) -> Iterator[None]:
        timer = threading.Timer(40, self.process.kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def do(self, what: str) -> None:
        """Makes the program misbehave."""
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/do/{what}", timeout=20).read()

    def stop(self, signum: int = signal.SIGTERM) -> tuple[int, str]:
        """Exit status, and everything said on standard error."""
        self.process.send_signal(signum)
        return self.end()

    def end(self) -> tuple[int, str]:
        """The same, when it ends by itself."""
        assert self.process.stderr is not None
        with self._deadline():
            self.said += self.process.stderr
        status = self.process.wait(60)
        return status, "".join(self.said)

    def status(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.run_dir / "status.json").read_text())
        return loaded

    def verdict(self) -> dict[str, str]:
        """Reason of each failed check."""
        command = [sys.executable, "-m", "hwtune", "verify-markers", "--run-dir"]
        command += [str(self.run_dir), "--format", "json"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        report = json.loads(result.stdout)
        assert result.returncode == (0 if report["passed"] else 1)
        return {c["name"]: c["reason"] for c in report["checks"] if c["status"] == "failed"}


@pytest.fixture
def serve_fake(tmp_path: Path) -> Iterator[Callable[..., FakeRun]]:
    runs: list[FakeRun] = []

    def start(
        *options: str, run_dir: Path | None = None, wrap: tuple[str, ...] = (), port: int = 0
    ) -> FakeRun:
        port = port or free_port()
        run_dir = run_dir or tmp_path / f"run{len(runs)}"
        command = [*wrap, sys.executable, str(DRIVER), str(port), str(run_dir), *options]
        process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        runs.append(FakeRun(process=process, run_dir=run_dir, port=port))
        return runs[-1]

    yield start
    for run in runs:
        if run.process.poll() is None:
            run.process.terminate()
        run.process.wait(60)
        assert run.process.stderr is not None
        run.process.stderr.close()
        assert_nothing_left(run.run_dir)


def assert_nothing_left(run_dir: Path) -> None:
    """No process of a run lives; those that were just killed get a moment."""
    deadline = time.monotonic() + 5
    while processes_of(run_dir) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_of(run_dir) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs privileges")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)
