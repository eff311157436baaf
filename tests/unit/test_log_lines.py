"""Every shape in which vLLM's lines reach a file."""

from __future__ import annotations

import json

import pytest

from hwtune.domain.log_lines import parse_line, split_progress

MESSAGE = "Setting attention block size to 832 tokens"
HEADER = "INFO 11-30 06:51:47 [interface.py:1096] "
PLAIN = f"(Worker pid=9) {HEADER}{MESSAGE}"

SHAPES = {
    "plain": PLAIN,
    "colours": f"\x1b[1;36m(Worker pid=9)\x1b[0;0m {HEADER}{MESSAGE}",
    "colours without escape": f"[1;36m(Worker pid=9)[0;0m {HEADER}{MESSAGE}",
    "docker compose": f"vllm-1  | {PLAIN}",
    "kubernetes": f"2025-07-29T12:19:19.333962774+07:00 stdout F {PLAIN}",
    "kubectl prefix": f"[pod/vllm-0/server] {PLAIN}",
    "clock and bar": f"2026-05-01 23:11:43.736 | {PLAIN}",
    "journald": f"авг 18 14:14:54 host python3[28146]: {PLAIN}",
    "buildkite": f"[2026-05-01T21:11:43Z] {PLAIN}",
    "ray outside": f"(vLLMHttpServer pid=542833) {PLAIN}",
    "ray repeated": f"{PLAIN} [repeated 15x across cluster]",
    "logging prefix": f"[rank0] prod {PLAIN}",
    "crlf": PLAIN + "\r",
    "json": json.dumps(
        {"levelname": "INFO", "message": MESSAGE, "processName": "Worker", "process": 9}
    ),
    "docker json-file": json.dumps({"log": PLAIN + "\n", "stream": "stderr"}),
    "prefix before json": "(Worker pid=9) " + json.dumps({"level": "INFO", "message": MESSAGE}),
}


@pytest.mark.parametrize("raw", SHAPES.values(), ids=SHAPES.keys())
def test_every_shape_gives_the_same_message(raw: str) -> None:
    line = parse_line("x.log", 1, raw)
    assert (line.message, line.level, line.process) == (MESSAGE, "INFO", "Worker pid=9")


@pytest.mark.parametrize(
    ("raw", "time", "source"),
    [
        ("INFO 03-19 06:27:09 api_server.py:528] hello", "03-19 06:27:09", "api_server.py:528"),
        ("INFO 03-19 06:27:09 [a/b.py:5] hello", "03-19 06:27:09", "a/b.py:5"),
        ("[2026-03-03 12:20:54] INFO p.py:69: hello", "2026-03-03 12:20:54", "p.py:69"),
        ("[2026-04-20 10:56:24.647][UC][I] hello", "2026-04-20 10:56:24", None),
        ("2026-01-01 10:00:00,123 - vllm.core - INFO - hello", "2026-01-01 10:00:00", "vllm.core"),
    ],
)
def test_headers_of_all_versions(raw: str, time: str, source: str | None) -> None:
    line = parse_line("x.log", 1, raw)
    assert (line.message, line.level, line.time, line.source) == ("hello", "INFO", time, source)


@pytest.mark.parametrize(
    "raw",
    [
        "just a print",
        "INFO:     Application startup complete.",
        f'prompt: "{HEADER}{MESSAGE}"',
        f"{{'prompt': '{HEADER}{MESSAGE}'}}",
        "x " * 300 + HEADER + MESSAGE,
        '{"message": 5}',
        "{not json}",
        "[" * 5000,
    ],
)
def test_lines_without_a_header_of_their_own_are_no_logger_lines(raw: str) -> None:
    assert not parse_line("x.log", 1, raw).is_logger


def test_the_inner_of_two_process_prefixes_wrote_the_line() -> None:
    line = parse_line("x.log", 1, f"(Actor pid=1) (Worker_TP1 pid=2) {HEADER}hello")
    assert line.process == "Worker_TP1 pid=2"


def test_ray_prefix_with_an_address() -> None:
    line = parse_line("x.log", 1, f"(pid=776, ip=10.0.0.2) {HEADER}hello")
    assert (line.process, line.message) == ("pid=776, ip=10.0.0.2", "hello")


def test_a_later_line_of_one_message_is_marked() -> None:
    first = parse_line("x.log", 1, f"{HEADER}template:\r")
    second = parse_line("x.log", 2, f"{HEADER}more of it", first)
    other = parse_line("x.log", 3, "INFO 11-30 06:51:48 [b.py:2] new", second)
    assert (second.continued, other.continued) == (True, False)


def test_progress_bars_are_split_at_bare_carriage_returns() -> None:
    text = f"Loading: 10%\rLoading: 100%\r{PLAIN}"
    assert list(split_progress(text)) == ["Loading: 10%\r", "Loading: 100%\r", PLAIN]
    assert list(split_progress(PLAIN + "\r")) == [PLAIN + "\r"]


@pytest.mark.parametrize(
    "text", ["(a pid=1) ", "(", "[2026-01-01 10:00:00] ", "a | ", "\x1b[1m", "{"]
)
def test_no_line_takes_more_than_linear_time(text: str) -> None:
    """Would not end within a test run if it did."""
    assert parse_line("x.log", 1, text * (250_000 // len(text))).number == 1
