"""``hwtune ab-bench accuracy`` against mock servers that answer with log-probabilities."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hwtune.cli import build_app
from hwtune.io.plans import write_plan
from tests.unit.test_planning import plan


class _Mock(BaseHTTPRequestHandler):
    """Stands in for vLLM: a context of letters, each prompt token with two candidates."""

    shift = 0.0
    refuses = False

    def do_GET(self) -> None:
        self._send({"data": [{"id": "mock", "max_model_len": 4096}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            self._send({"count": len(body["prompt"].split())})
        elif self.refuses:
            self._send({"error": {"message": "logprobs: at most 5"}}, 400)
        else:
            self._send({"choices": [self._choice(body)]})

    def _choice(self, body: dict[str, Any]) -> dict[str, Any]:
        choice: dict[str, Any] = {"text": "x" * body["max_tokens"]}
        if "prompt_logprobs" in body:
            words = len(body["prompt"].split())
            entry = {"1": {"logprob": -0.2}, "2": {"logprob": -2.0 + self.shift}}
            choice["prompt_logprobs"] = [None, *[entry] * (words - 1)]
            count = body["max_tokens"]
            choice["logprobs"] = {
                "tokens": ["1"] * count,
                "token_logprobs": [-0.2] * count,
                "top_logprobs": [{"1": -0.2, "2": -2.0}] * count,
            }
        return choice

    def _send(self, data: dict[str, Any], status: int = 200) -> None:
        text = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def _serving(**attributes: object) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Mock", (_Mock,), attributes))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _run(*arguments: str) -> tuple[int, str, str]:
    line = ["ab-bench", "accuracy", *arguments]
    result = CliRunner().invoke(build_app(line), line)
    problem = "" if result.exception is None else str(result.exception)
    return result.exit_code, result.stdout, problem


SMALL = ("--context", "80", "--items", "2", "--prompts", "2")


def _compare(tmp_path: Path, *more: str, **candidate: object) -> tuple[int, str, str]:
    with _serving() as left, _serving(**candidate) as right:
        urls = ("--baseline-url", left, "--candidate-url", right)
        return _run(*urls, "--run-dir", str(tmp_path / "run"), *SMALL, *more)


def test_equal_servers_agree_and_the_result_is_kept(tmp_path: Path) -> None:
    status, text, _ = _compare(tmp_path)
    assert status == 0
    assert "agrees: every check passed" in text
    kept = json.loads((tmp_path / "run" / "accuracy.json").read_text())
    assert (kept["scope"], kept["verdict"]) == ("accuracy", "agrees")
    assert kept["agreements"][0]["positions"] > 100


def test_another_distribution_has_exit_status_1(tmp_path: Path) -> None:
    status, text, _ = _compare(tmp_path, "--format", "json", shift=1.5)
    assert status == 1
    assert json.loads(text)["verdict"] == "differs"


def test_what_a_server_says_when_it_refuses_is_passed_on(tmp_path: Path) -> None:
    status, _, problem = _compare(tmp_path, refuses=True)
    assert status != 0
    assert "HTTP status 400" in problem and "logprobs: at most 5" in problem


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--top", "1"), "--top 1: at least 2"),
        (("--context", "9000"), "more than the server's 4096"),
        (("--max-kl", "nan"), "--max-kl must be above 0"),
    ],
)
def test_questions_that_cannot_be_asked(
    tmp_path: Path, arguments: tuple[str, ...], problem: str
) -> None:
    status, _, said = _compare(tmp_path, *arguments)
    assert status != 0 and problem in said


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "accuracy.json").write_text("{}")
    status, _, said = _compare(tmp_path)
    assert status != 0 and "already holds a result" in said
    assert (tmp_path / "run" / "accuracy.json").read_text() == "{}"


def test_a_run_directory_that_cannot_be_is_known_before_anything_is_asked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    unreachable = ("--baseline-url", "http://127.0.0.1:1", "--candidate-url", "http://127.0.0.1:2")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        status, _, said = _run(*unreachable, "--run-dir", str(place))
        assert status != 0 and f"--run-dir {place}: cannot be made" in said


def test_a_run_directory_that_proves_nothing_is_refused_before_a_question(tmp_path: Path) -> None:
    status, text, problem = _compare(tmp_path, "--candidate-run", str(tmp_path / "gone"))
    assert status != 0 and not text
    assert "no such run directory" in problem


@pytest.mark.parametrize(("flags", "state"), [((), "passed"), (("--dtype", "half"), "failed")])
def test_the_plans_of_given_servers_may_differ_only_in_what_they_declare(
    tmp_path: Path, flags: tuple[str, ...], state: str
) -> None:
    with _serving() as left, _serving() as right:
        runs = []
        for arm, url, own in (("baseline", left, ()), ("candidate", right, flags)):
            place = ("--profiler-config.torch_profiler_dir", str(tmp_path / arm))
            made = plan(arm=arm, flags=("--max-model-len", "4096", *place, *own))
            (tmp_path / arm).mkdir()
            write_plan(replace(made, port=int(url.rpartition(":")[2])), tmp_path / arm)
            runs += [f"--{arm}-url", url, f"--{arm}-run", str(tmp_path / arm)]
        _run(*runs, "--run-dir", str(tmp_path / "run"), *SMALL)
    gates = json.loads((tmp_path / "run" / "accuracy.json").read_text())["gates"]
    (found,) = (gate for gate in gates if gate["name"] == "arms differ only in what was declared")
    assert found["state"] == state
    assert ("flags" in found["evidence"] and "half" in found["evidence"]) == bool(flags)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("m", "--profile", "cpu", "--baseline-run", "x"), "--baseline-run has no effect"),
        (("m", "--baseline-url", "http://a:1", "--candidate-url", "http://b:1"), "leave it out"),
        (
            (
                "--ready-timeout",
                "9",
                "--baseline-url",
                "http://a:1",
                "--candidate-url",
                "http://b:1",
            ),
            "--ready-timeout has no effect",
        ),
    ],
)
def test_what_the_servers_say_themselves_is_refused(
    arguments: tuple[str, ...], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert problem in _run(*arguments)[2]
    assert list(tmp_path.iterdir()) == []
