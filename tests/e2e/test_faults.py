"""What breaks under real vLLM: every request is served or fails clearly, and the verdict says why."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import threading
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hwtune.adapters.vllm.processes import family
from tests.e2e.conftest import start, wait_until_serving
from tests.e2e.support import EVERY_SHAPE, Served, hwtune, prompt

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
MODULE = "tests.e2e.faulty_kernels"
KERNELS = {
    "late_failure": (f"{MODULE}:LateFailure", 1, 1),
    "wrong_shape": (f"{MODULE}:wrong_shape", 40, 49),
    "own_result": (f"{MODULE}:own_result", 50, 59),
    "not_a_number": (f"{MODULE}:not_a_number", 60, 69),
    "five_percent_off": (f"{MODULE}:five_percent_off", 70, 79),
    "half_written": (f"{MODULE}:half_written", 80, 89),
    "import_fails": ("tests.e2e.faulty_import:kernel", 90, 94),
    "absent": ("tests.e2e.no_such_module:kernel", 95, 99),
    "good": ("prefill.cpu", 100, 8192),
}
"""Name -> implementation and the query lengths it takes."""

BROKEN_IN_USE = ("wrong_shape", "own_result", "not_a_number", "five_percent_off", "half_written")


def faulty_profile(folder: Path) -> Path:
    head, _, _ = EVERY_SHAPE.read_text().partition("[[kernels]]")
    tables = [
        f'[[kernels]]\nname = "{name}"\nimplementation = "{implementation}"\nsource = "a test"\n'
        f"[kernels.when]\nmin_query_len = {low}\nmax_query_len = {high}\n"
        for name, (implementation, low, high) in KERNELS.items()
    ]
    path = folder / "faulty.toml"
    path.write_text("\n".join([head, *tables]))
    return path


@pytest.fixture(scope="module")
def faulty(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("faulty")
    profile = faulty_profile(folder)
    served = start(
        folder / "run", "--profile", str(profile), "--checked", "--keep-going", PYTHONPATH=_path()
    )
    yield from _until_the_end(served)


def _path() -> str:
    return f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"


def _until_the_end(served: Served) -> Iterator[Served]:
    try:
        wait_until_serving(served)
        yield served
    finally:
        if served.process.poll() is None:
            served.process.terminate()
            served.process.wait(60)
        assert served.process.stdout is not None
        served.process.stdout.close()


def report(run_dir: Path) -> dict[str, Any]:
    result = hwtune("verify-markers", "--run-dir", str(run_dir), "--format", "json")
    assert result.returncode in (0, 1), result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_whatever_a_kernel_does_wrong_the_client_gets_what_vllm_computes(
    baseline: Served, faulty: Served
) -> None:
    for length in (45, 55, 65, 75, 85, 92, 97, 120, 900):
        assert faulty.complete(prompt(length)) == baseline.complete(prompt(length)), length
    found = report(faulty.run_dir)
    kernels = {kernel["kernel"]: kernel for kernel in found["kernels"]}
    for name in (*BROKEN_IN_USE, "import_fails", "late_failure"):
        assert kernels[name]["faults"] == 1, name
    for name in (*BROKEN_IN_USE, "import_fails", "absent"):
        assert kernels[name]["hits"] == 0, name
    assert kernels["late_failure"]["hits"] == 5
    assert kernels["late_failure"]["fallbacks"]["raised RuntimeError before"] > 50
    assert kernels["good"]["hits"] >= 3  # the probe's too
    assert kernels["good"]["faults"] == 0


def test_each_fault_is_said_once_with_its_reason(baseline: Served, faulty: Served) -> None:
    said = {
        mark["fields"]["kernel"]: mark["fields"]["error"]
        for mark in report(faulty.run_dir)["marks"]
        if mark["kind"] == "fault"
    }
    assert said["late_failure"] == "RuntimeError: device lost"
    assert said["wrong_shape"].startswith("RuntimeError: ")
    assert "a kernel writes into output (55, 6, 64)" in said["own_result"]
    assert "NaN or Inf on one side only" in said["not_a_number"]
    assert "above 0.0195" in said["five_percent_off"]
    assert "NaN or Inf on one side only" in said["half_written"]
    assert "another driver" in said["import_fails"]
    log = (faulty.run_dir / "server.log").read_text()
    assert log.count("] fault kernel=") == len(said) == len(BROKEN_IN_USE) + 2


def test_checked_mode_proves_the_good_kernel_and_convicts_the_others(faulty: Served) -> None:
    found = report(faulty.run_dir)
    checks = {check["name"]: check for check in found["checks"]}
    assert checks["numbers:good"]["status"] == "passed"
    assert checks["numbers:late_failure"]["status"] == "passed"  # it was right while it ran
    for name in ("not_a_number", "five_percent_off", "half_written"):
        assert checks[f"numbers:{name}"]["status"] == "failed"
        assert "the requests got vLLM's own output" in checks[f"numbers:{name}"]["reason"]
    worst = {row["kernel"]: row["worst_relative"] for row in found["numbers"]}
    assert 0 < worst["good"] < 0.0195
    assert worst["five_percent_off"] == pytest.approx(0.05, abs=0.02)
    assert found["passed"] is False


def test_an_engine_killed_under_load_fails_its_requests_and_leaves_all_evidence(
    faulty: Served,
) -> None:
    failed: list[str] = []

    def load() -> None:
        try:
            for _ in range(50):  # a machine whose cores are all the engine's may let us wait long
                faulty.complete(prompt(200), tokens=6000)
        except urllib.error.HTTPError as error:
            error.close()
            failed.append(str(error))
        except OSError as error:
            failed.append(str(error))

    clients = [threading.Thread(target=load) for _ in range(3)]
    for client in clients:
        client.start()
    time.sleep(2)
    engine = _process_called("VLLM::EngineCore", faulty)
    os.kill(engine, signal.SIGKILL)
    for client in clients:
        client.join(60)
    assert len(failed) == 3
    assert faulty.process.stdout is not None
    rest = faulty.process.stdout.read()
    assert faulty.process.wait(60) == 6
    (error,) = [line for line in rest.splitlines() if line.startswith("hwtune: error")]
    assert f"the first to end was VLLM::EngineCore (pid {engine})" in error
    assert "EngineDeadError" in error
    assert family(_supervisor(faulty)) == frozenset()
    status = json.loads((faulty.run_dir / "status.json").read_text())
    assert status["state"] == "died"
    found = report(faulty.run_dir)
    assert {kernel["kernel"]: kernel["hits"] for kernel in found["kernels"]}["late_failure"] == 5
    assert [check["status"] for check in found["checks"] if check["name"] == "health"] == ["failed"]


def _supervisor(served: Served) -> int:
    pid: int = json.loads((served.run_dir / "status.json").read_text())["pid"]
    return pid


def _process_called(name: str, served: Served) -> int:
    """By descent: a process that changes its title writes over what /proc shows of its variables."""
    for pid in sorted(family(_supervisor(served))):  # before what it forked and not yet renamed
        if Path(f"/proc/{pid}/cmdline").read_text().startswith(name):
            return pid
    raise AssertionError(name)


def test_a_damaged_plan_a_hang_and_a_lost_directory(
    model: Path, baseline: Served, tmp_path: Path
) -> None:
    """One server through all of it: it goes on serving, and each is said when it happens."""
    served = start(tmp_path / "run", "--profile", str(EVERY_SHAPE), *_PATIENT)
    threading.Thread(target=_damage_plan, args=(served.run_dir,)).start()
    for _ in _until_the_end(served):
        log = (served.run_dir / "server.log").read_text()
        assert "hwtune[unreadable] refused reason=" in log
        assert "schema_version 99" in log
        assert "schema_version 99" in "".join(served.output)
        assert served.complete(prompt(900)) == baseline.complete(prompt(900))
        _hang_and_go_on(served, baseline)
        supervisor = _supervisor(served)
        shutil.rmtree(served.run_dir)
        _wait_for(served, "evidence lost")
        assert served.complete(prompt(300)) == baseline.complete(prompt(300))
        served.process.terminate()
        assert served.process.stdout is not None
        rest = served.process.stdout.read()
        assert served.process.wait(60) == 1, rest
        assert "at its end: FAIL" in rest
        assert "Traceback" not in rest
        assert family(supervisor) == frozenset()


_PATIENT = ("--keep-going", "--watchdog", "5", "--quiet")


def _damage_plan(run_dir: Path) -> None:
    path = run_dir / "plan.json"
    while not path.exists():
        time.sleep(0.01)
    path.write_text('{"schema_version": 99}')


def _hang_and_go_on(served: Served, baseline: Served) -> None:
    """The worker stops as on a device that does not answer; /health is answered all the time."""
    worker = _process_called("VLLM::Worker", served)
    os.kill(worker, signal.SIGSTOP)
    answers: list[str] = []
    client = threading.Thread(target=lambda: answers.append(served.complete(prompt(64))))
    client.start()
    line = _wait_for(served, "the server is stuck")
    assert f"(pid {worker}) is stopped" in line
    os.kill(worker, signal.SIGCONT)
    _wait_for(served, "the server works again")
    client.join(60)
    assert answers == [baseline.complete(prompt(64))]


def _wait_for(served: Served, text: str) -> str:
    assert served.process.stdout is not None
    timer = threading.Timer(90, served.process.kill)
    timer.start()
    try:
        for line in served.process.stdout:
            served.output.append(line)
            if text in line:
                return line
    finally:
        timer.cancel()
    raise AssertionError("".join(served.output))


def test_a_port_taken_while_vllm_starts_is_not_taken_for_the_server(
    model: Path, tmp_path: Path
) -> None:
    """vLLM binds its port early and listens late: until then another program can have it."""
    served = start(tmp_path / "run", "--quiet")
    while not (served.run_dir / "plan.json").exists():
        assert served.process.poll() is None
    with http.server.HTTPServer(
        ("127.0.0.1", int(served.url.rpartition(":")[2])), Healthy
    ) as thief:
        threading.Thread(target=thief.serve_forever, daemon=True).start()
        assert served.process.stdout is not None
        said = served.process.stdout.read()
        served.process.stdout.close()
        assert served.process.wait(60) == 6, said
        thief.shutdown()
    (error,) = [line for line in said.splitlines() if line.startswith("hwtune: error")]
    assert f"(pid {os.getpid()})" in error
    assert "serving at" not in said
    assert family(_supervisor(served)) == frozenset()


class Healthy(http.server.BaseHTTPRequestHandler):
    """Answers every question with success, as another server on the port would."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass
