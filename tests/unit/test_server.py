"""The launcher against small programs that behave as vLLM may: no vLLM is needed to test it."""

from __future__ import annotations

import dataclasses
import json
import resource
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hwtune.adapters.vllm.log_copy import LogCopy
from hwtune.adapters.vllm.planning import free_port
from hwtune.adapters.vllm.server import ask, serve
from hwtune.domain.errors import ExternalFailureError, InputError
from hwtune.domain.launch import LaunchPlan
from tests.unit.test_planning import plan

HEALTHY = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"metric 1\\n")
    def log_message(self, *args): pass
print("plan", os.environ["HWTUNE_PLAN"], flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def program(code: str) -> LaunchPlan:
    port = free_port()
    return dataclasses.replace(plan(), argv=(sys.executable, "-c", code, str(port)), port=port)


def status(run_dir: Path) -> dict[str, object]:
    loaded: dict[str, object] = json.loads((run_dir / "status.json").read_text())
    return loaded


def test_a_run_leaves_its_plan_log_metrics_and_status(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shown: list[str] = []
    with serve(program(HEALTHY), run_dir, echo=shown.append) as server:
        assert status(run_dir)["state"] == "ready"
        assert server.alive()
    assert not server.alive()
    assert status(run_dir)["state"] == "stopped"
    assert (run_dir / "server.log").read_text() == f"plan {run_dir / 'plan.json'}\n"
    assert shown == [f"plan {run_dir / 'plan.json'}"]
    assert (run_dir / "metrics.txt").read_text() == "metric 1\n"


def test_a_child_that_dies_says_with_what_status(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    failing = program("print('no device'); raise SystemExit(3)")
    with (
        pytest.raises(ExternalFailureError, match="status 3 during start-up"),
        serve(failing, run_dir),
    ):
        pass
    assert status(run_dir)["state"] == "died"
    assert status(run_dir)["exit_code"] == 3
    assert (run_dir / "server.log").read_text() == "no device\n"


def test_a_child_that_never_gets_healthy_is_stopped(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    silent = program("import time; time.sleep(60)")
    with (
        pytest.raises(ExternalFailureError, match=r"not healthy after 0\.5 s"),
        serve(silent, run_dir, ready_timeout_s=0.5),
    ):
        pass
    assert status(run_dir)["reason"] == "not healthy after 0.5 s"


def test_two_servers_never_share_a_run_directory(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with serve(program(HEALTHY), run_dir):
        before = (run_dir / "plan.json").read_text()
        with (
            pytest.raises(InputError, match="already holds a run"),
            serve(program(HEALTHY), run_dir),
        ):
            pass
        assert (run_dir / "plan.json").read_text() == before


def test_a_run_directory_that_vanishes_does_not_stop_the_server(tmp_path: Path) -> None:
    import shutil

    run_dir = tmp_path / "run"
    with serve(program(HEALTHY), run_dir) as server:
        shutil.rmtree(run_dir)
        assert server.scrape() == "metric 1\n"
        assert server.alive()
    assert not server.alive()


def test_a_run_directory_that_is_a_file_is_said_to_be_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(InputError, match="is a file"), serve(program(HEALTHY), path):
        pass


def test_a_reader_that_goes_away_costs_the_display_not_the_log(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"

    def gone(line: str) -> None:
        raise BrokenPipeError

    code = HEALTHY.replace("flush=True)", "flush=True); print('x' * 200_000, flush=True)")
    with serve(program(code), run_dir, echo=gone) as server:
        assert server.alive()
    assert len((run_dir / "server.log").read_text()) > 200_000


def test_an_answer_that_breaks_off_is_an_os_error() -> None:
    """A server that dies while it answers; http.client's own error is none of the OSErrors."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def break_off() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")

        thread = threading.Thread(target=break_off)
        thread.start()
        with pytest.raises(OSError, match="IncompleteRead"):
            ask(f"http://127.0.0.1:{listener.getsockname()[1]}/", 5.0)
        thread.join()


TALK = """
import sys
for line in sys.stdin:
    for number in range(int(line)):
        sys.stdout.write(f"{number:99}" + chr(10))
    sys.stdout.write("done" + chr(10)); sys.stdout.flush()
"""


def test_a_log_goes_on_when_the_disk_has_room_again_and_says_what_is_missing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "server.log"
    child = subprocess.Popen(
        [sys.executable, "-c", TALK], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None
    done = threading.Semaphore(0)
    log = LogCopy(child, path, lambda line: done.release() if line == "done" else None)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        child.stdin.write(b"20000\n")
        child.stdin.flush()
        assert done.acquire(timeout=30)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    child.stdin.write(b"1\n")
    child.stdin.close()
    child.wait(30)
    log.join(30)
    text = path.read_text()
    assert text.endswith(f"File too large\n{0:99}\ndone\n")
    missing = 20001 - (1 << 20) // 100
    assert f"hwtune: {missing} lines are missing here:" in text
    assert log.lost is not None
    assert log.tail()[-1] == "done"
