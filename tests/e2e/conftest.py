"""Real vLLM servers of the tiny model, each started through hwtune's command line."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.support import EVERY_SHAPE, MODEL, Served, cli_environment, free_port, serve_command

READY_TIMEOUT_S = 300.0


@pytest.fixture(scope="session")
def model() -> Path:
    if not (MODEL / "model.safetensors").exists():
        pytest.fail(f"{MODEL} has no weights; `make e2e` makes them")
    return MODEL


def start(run_dir: Path, *arguments: str, **environment: str) -> Served:
    port = free_port()
    command = serve_command("--run-dir", str(run_dir), "--port", str(port), *arguments)
    return start_command(command, run_dir, port, **environment)


def start_command(command: list[str], run_dir: Path, port: int, **environment: str) -> Served:
    process = subprocess.Popen(
        command,
        env=cli_environment(**environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return Served(process=process, run_dir=run_dir, url=f"http://127.0.0.1:{port}")


def wait_until_serving(served: Served) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    assert served.process.stdout is not None
    for line in served.process.stdout:
        served.output.append(line)
        if "serving at" in line or time.monotonic() > deadline:
            break
    if served.process.poll() is not None or "serving at" not in served.output[-1]:
        said = [line for line in served.output if line.startswith("hwtune")]
        pytest.fail("the server did not come up:\n" + "".join(said))


@pytest.fixture(scope="session")
def baseline(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from running(tmp_path_factory.mktemp("e2e") / "baseline", "--arm", "baseline")


@pytest.fixture(scope="session")
def candidate(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from running(tmp_path_factory.mktemp("e2e") / "candidate", "--profile", str(EVERY_SHAPE))


def running(run_dir: Path, *arguments: str) -> Iterator[Served]:
    """A server that records a profile between /start_profile and /stop_profile."""
    profiler = ("--profiler-config.profiler", "torch", "--profiler-config.torch_profiler_dir")
    served = start(run_dir, *arguments, *profiler, str(run_dir / "profile"))
    try:
        wait_until_serving(served)
        yield served
    finally:
        served.process.send_signal(signal.SIGTERM)
        served.process.wait(60)
        assert served.process.stdout is not None
        served.process.stdout.close()
