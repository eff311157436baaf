"""What becomes of a server when something around it breaks: served or failed clearly, nothing left."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.support import free_port
from tests.faults.conftest import FakeRun

Serve = Callable[..., FakeRun]
QUICK = ("--watchdog", "1")
TAKEN = """
import http.server, socket, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *args): pass
class Server(http.server.HTTPServer):
    def server_bind(self):
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().server_bind()
server = Server(("127.0.0.1", int(sys.argv[1])), Handler)
print("up", flush=True)
server.serve_forever()
"""


def test_a_stop_leaves_a_verdict_a_status_and_no_process(serve_fake: Serve) -> None:
    run = serve_fake()
    run.wait_for("serving at")
    status, said = run.stop()
    assert status == 0, said
    assert run.status()["state"] == "stopped"
    assert run.status()["reason"] == "asked to stop"
    assert run.verdict() == {}


def test_an_engine_that_hangs_is_found_said_and_written_down(serve_fake: Serve) -> None:
    """/health is answered all the time, and the metrics show nothing: vLLM's own picture of it."""
    run = serve_fake(*QUICK)
    run.wait_for("serving at")
    run.do("hang")
    with socket.create_connection(("127.0.0.1", run.port)) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
        line = run.wait_for("stuck")
    assert "a request of one token got no answer in 1 s" in line
    assert "Traceback" not in line
    status, said = run.stop()
    assert status == 6, said
    assert "hwtune: error: the server was stuck: a request of one token" in said
    assert run.status()["state"] == "stopped"
    assert run.status()["reason"].startswith("stuck: a request of one token")
    assert run.verdict()["progress"].startswith("stuck: a request of one token")


def test_an_idle_server_is_not_asked_anything(serve_fake: Serve) -> None:
    run = serve_fake(*QUICK)
    run.wait_for("serving at")
    run.do("hang")  # would be found if it were asked
    with pytest.raises(subprocess.TimeoutExpired):
        run.process.wait(3)
    status, said = run.stop()
    assert status == 0, said


def test_a_server_that_answers_nothing_is_stopped_when_asked_to(serve_fake: Serve) -> None:
    run = serve_fake(*QUICK, "--stop-when-stuck", "--no-probe")
    run.wait_for("serving at")
    run.do("mute")
    status, said = run.end()
    assert status == 6, said
    assert "no good answer to /health for" in said
    assert said.count("hwtune: error") == 1


def test_a_stopped_process_is_named(serve_fake: Serve) -> None:
    run = serve_fake(*QUICK, "--no-probe")
    run.wait_for("serving at")
    server = next(pid for pid in _children(run) if pid != run.status()["pid"])
    os.kill(server, signal.SIGSTOP)
    line = run.wait_for("stuck")
    assert f"(pid {server}) is stopped" in line
    os.kill(server, signal.SIGCONT)
    assert "works again after" in run.wait_for("works again")
    status, said = run.stop()
    assert status == 0, said
    assert run.status()["trouble"] is None


def _children(run: FakeRun) -> list[int]:
    from hwtune.adapters.vllm.processes import family

    return sorted(family(run.status()["pid"]))


def _title(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]


def test_a_server_that_dies_says_which_process_went_first(serve_fake: Serve) -> None:
    run = serve_fake()
    run.wait_for("serving at")
    engine = next(pid for pid in _children(run) if _title(pid) == "VLLM::EngineCore")
    time.sleep(3)  # several of its forks come and go, and nothing is said of them
    run.do("kill-engine")
    line = run.wait_for("ended while the server still ran")
    assert f"VLLM::EngineCore (pid {engine})" in line
    assert "".join(run.said).count("ended while") == 1
    run.do("exit")
    status, said = run.end()
    assert status == 6, said
    (error,) = [line for line in said.splitlines() if line.startswith("hwtune: error")]
    assert "ended without being asked to (exit status 137)" in error
    assert "the first to end was VLLM::EngineCore (pid" in error
    assert run.status()["state"] == "died"
    assert "the first to end was" in run.status()["reason"]


def test_the_first_to_go_is_known_also_when_the_rest_follows_at_once(serve_fake: Serve) -> None:
    run = serve_fake()
    run.wait_for("serving at")
    time.sleep(1.6)  # looks come once a second: the next would be too late
    run.do("fall")
    status, said = run.end()
    assert status == 6, said
    assert "the first to end was VLLM::EngineCore (pid" in said


@pytest.fixture
def thief() -> Iterator[Callable[[int], subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def take(port: int) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", TAKEN, str(port)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        started.append(process)
        return process

    yield take
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_port_taken_during_start_up_is_not_taken_for_the_server(
    serve_fake: Serve, thief: Callable[[int], subprocess.Popen[bytes]]
) -> None:
    run = serve_fake("--bind-late")
    run.wait_for("run directory")
    while not run.run_dir.joinpath("plan.json").exists():
        pass
    pid = thief(run.port).pid
    status, said = run.end()
    assert status == 6, said
    (error,) = [line for line in said.splitlines() if line.startswith("hwtune: error")]
    assert f"port {run.port} is taken by " in error
    assert f"(pid {pid})" in error
    assert "serving at" not in said


def test_a_port_shared_under_way_is_said_and_its_end_too(
    serve_fake: Serve, thief: Callable[[int], subprocess.Popen[bytes]]
) -> None:
    run = serve_fake(*QUICK)
    run.wait_for("serving at")
    other = thief(run.port)
    line = run.wait_for("stuck")
    assert f"(pid {other.pid}) listens on port {run.port} too" in line
    other.kill()
    run.wait_for("works again")
    status, said = run.stop()
    assert status == 0, said


def test_a_run_directory_deleted_under_way_costs_the_evidence_alone(serve_fake: Serve) -> None:
    run = serve_fake()
    run.wait_for("serving at")
    shutil.rmtree(run.run_dir)
    assert f"evidence lost: {run.run_dir}: deleted" in run.wait_for("evidence lost")
    run.do("talk/5000")
    assert run.process.poll() is None
    status, said = run.stop()
    assert status == 1, said
    assert "at its end: FAIL" in said
    assert "Traceback" not in said
    assert not run.run_dir.exists()


def test_a_death_after_its_directory_went_still_shows_the_last_words(serve_fake: Serve) -> None:
    run = serve_fake()
    run.wait_for("serving at")
    run.do("talk/3000")
    shutil.rmtree(run.run_dir)
    run.do("exit")
    status, said = run.end()
    assert status == 6, said
    (error,) = [line for line in said.splitlines() if line.startswith("hwtune: error")]
    assert "the log just ends; its last line is:" in error


def test_a_full_disk_costs_lines_of_the_log_and_the_verdict_says_so(
    serve_fake: Serve, small_disk: Path
) -> None:
    run = serve_fake(run_dir=small_disk / "run")
    run.wait_for("serving at")
    run.do("talk/3000000")
    run.wait_for("evidence lost")
    assert run.process.poll() is None
    status, said = run.stop()
    assert status == 1, said
    assert "No space left on device" in said
    assert run.status()["state"] == "stopped"  # written over in place
    assert "server.log: No space left on device" in run.verdict()["evidence"]


def test_a_directory_that_cannot_be_written_is_refused_before_anything_starts(
    serve_fake: Serve, small_disk: Path
) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    status, said = serve_fake(run_dir=small_disk / "run").end()
    assert status == 3, said
    assert "cannot create the run directory: Read-only file system" in said


def test_a_damaged_plan_is_said_and_the_server_goes_on(serve_fake: Serve) -> None:
    run = serve_fake()
    run.wait_for("serving at")
    (run.run_dir / "plan.json").write_text('{"schema_version": 99}')
    status, said = run.stop()
    assert status == 1, said
    assert "at its end: FAIL" in said
    assert "schema_version 99" in said


def test_as_process_one_of_a_container_it_stops_on_sigterm(serve_fake: Serve) -> None:
    """Process 1 gets no signal it has no handler for, and adopts every orphan."""
    unshare = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("making a PID namespace needs privileges")
    run = serve_fake(wrap=(*unshare, "--"))
    run.wait_for("serving at")
    (inside,) = _children_of(run.process.pid)
    os.kill(inside, signal.SIGTERM)
    status, said = run.end()
    assert status == 0, said
    assert run.status()["owner_pid"] == 1
    assert run.status()["state"] == "stopped"


def _children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_without_any_output_it_serves_and_stops(tmp_path: Path) -> None:
    """A service manager may give no standard streams at all."""
    driver, port, run_dir = Path(__file__).with_name("serve_fake.py"), free_port(), tmp_path / "r"
    root = Path(__file__).parents[2]
    code = 'exec "$@" <&- >&- 2>&-'
    process = subprocess.Popen(
        ["sh", "-c", code, "sh", sys.executable, str(driver), str(port), str(run_dir)],
        env={**os.environ, "PYTHONPATH": f"{root}:{os.environ.get('PYTHONPATH', '')}"},
    )
    while not (run_dir / "report.json").exists():
        assert process.poll() is None
    process.terminate()
    assert process.wait(60) in (0, 130)  # 130 when it had not come to serving yet
    assert '"state": "stopped"' in (run_dir / "status.json").read_text()
