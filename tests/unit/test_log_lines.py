"""Every shape in which vLLM's lines reach a file."""

from __future__ import annotations

import json

import pytest

from hwtune.domain.line_prefixes import LearntPrefixes
from hwtune.domain.log_lines import parse_line, parse_lines, split_progress

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
    "ray repeated, and why": f"{PLAIN} [repeated 3x across cluster] (Ray deduplicates logs by default."
    " Set RAY_DEDUP_LOGS=0 to disable log deduplication, or see https://docs.ray.io/en/master/"
    "ray-observability/user-guides/configure-logging.html#log-deduplication for more options.)",
    "ray repeated": f"{PLAIN} [repeated 15x across cluster]",
    "journald short-iso": f"2026-01-12T03:04:05+0200 host vllm[42]: {PLAIN}",
    "journald short-full": f"Mon 2026-01-12 03:04:05 UTC host vllm[42]: {PLAIN}",
    "gitlab": f"2026-01-02T03:04:05.123456Z 01O {PLAIN}",
    "github actions": f"2026-01-02T03:04:05.1234567Z {PLAIN}",
    "buildkite timestamps": f"\x1b_bk;t=1700000000000\x07{PLAIN}",
    "srun": f" 3: {PLAIN}",
    "torchrun": f"[default0]:{PLAIN}",
    "ray and kubernetes": f"2026-01-02T03:04:05Z stderr F (Actor pid=3) [rank0]: {PLAIN}",
    "clock": f"2026-01-02 03:04:05,123 {PLAIN}",
    "mail": f"> {PLAIN}",
    "byte order mark": f"\ufeff{PLAIN}",
    "blanks at the end": f"{PLAIN}  ",
    "logging prefix": f"[rank0] prod {PLAIN}",
    "crlf": PLAIN + "\r",
    "json": json.dumps(
        {"levelname": "INFO", "message": MESSAGE, "processName": "Worker", "process": 9}
    ),
    "docker json-file": json.dumps({"log": PLAIN + "\n", "stream": "stderr"}),
    "google cloud": json.dumps({"severity": "ERROR", "textPayload": PLAIN}),
    "google cloud, structured": json.dumps({"jsonPayload": {"message": PLAIN}, "insertId": "x"}),
    "loki": json.dumps({"labels": {"pod": "x"}, "line": PLAIN}),
    "colours in docker's json": json.dumps(
        {"log": f"\x1b[1;36m(Worker pid=9)\x1b[0;0m {HEADER}{MESSAGE}\n"}
    ),
    "colours of rsyslog": f"#033[1;36m(Worker pid=9)#033[0;0m {HEADER}{MESSAGE}",
    "colours in Python's words": rf"\x1b[1;36m(Worker pid=9)\x1b[0;0m {HEADER}{MESSAGE}",
    "colours in JSON's words": rf"\u001b[1;36m(Worker pid=9)\u001b[0;0m {HEADER}{MESSAGE}",
    "colours in the shell's words": rf"\033[1;36m(Worker pid=9)\e[0;0m {HEADER}{MESSAGE}",
    "colours of less": f"^[[1;36m(Worker pid=9)^[[0;0m {HEADER}{MESSAGE}",
    "fastchat": f"2024-10-14 01:39:49 | ERROR | stderr | {PLAIN}",
    "fastchat of a rank": f"2024-10-14 01:39:49 | INFO | stdout | [rank0]: {PLAIN}",
    "fluentd": "2026-05-01 10:00:00 +0000 docker.vllm: " + json.dumps({"log": PLAIN}),
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
        ("2026-01-01 10:00:00,1 vllm.core INFO hello", "2026-01-01 10:00:00", "vllm.core"),
        ("2026-01-01 10:00:00.1 | INFO     | a.b:f:9 - hello", "2026-01-01 10:00:00", "a.b:f:9"),
        ("2026-01-01 10:00:00 INFO p.py:9 hello", "2026-01-01 10:00:00", "p.py:9"),
        ("[2026-01-01 10:00:00,1] [INFO] [p.py:9] hello", "2026-01-01 10:00:00", "p.py:9"),
        ("INFO 2026-01-01 10:00:00 [p.py:9] hello", "2026-01-01 10:00:00", "p.py:9"),
        ("2026-01-02 03:04:05 INFO 01-01 10:00:00 [p.py:9] hello", "01-01 10:00:00", "p.py:9"),
        ("INFO:vllm.core:hello", None, "vllm.core"),
        ("INFO [p.py:9] hello", None, "p.py:9"),
        ("INFO 08-22 03:02:11 p.py: hello", "08-22 03:02:11", "p.py"),
    ],
)
def test_headers_of_all_versions(raw: str, time: str | None, source: str | None) -> None:
    line = parse_line("x.log", 1, raw)
    assert (line.message, line.level, line.time, line.source) == ("hello", "INFO", time, source)


@pytest.mark.parametrize(
    "raw",
    [
        "just a print",
        "INFO:     Application startup complete.",
        "2026-01-02T03:04:05Z INFO:     Application startup complete.",
        "Jan 02 03:04:05 LLVM ERROR: Unsupported rounding mode",
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


def test_a_process_without_its_number() -> None:
    line = parse_line("x.log", 1, "(EngineCore_DP0) INFO [core.py:113] hello")
    assert (line.process, line.message, line.level) == ("EngineCore_DP0", "hello", "INFO")
    assert parse_line("x.log", 1, "(EngineCore started)").process is None


def test_a_header_whose_source_stands_behind_the_message() -> None:
    line = parse_line(
        "x.log", 1, "[2026-04-20 10:56:24.6][UC][E] hello [25586,25587][a/b.py:19,_report]"
    )
    assert (line.message, line.process, line.source) == ("hello", "pid=25586", "a/b.py:19")


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
    "prefix",
    [
        "{:3}|vllm     | ",
        "03:04:{:02} DBG stderr ",
        "> ",
        "{}\t",
        "  ",
        "pod-a server ",
        "Jan 2 03:{:02}:05 ",
    ],
)
def test_a_headers_prefix_is_taken_off_lines_without_a_header(prefix: str) -> None:
    learnt = LearntPrefixes()
    bare = ["INFO:     Application startup complete.", '  File "a.py", line 3, in f']
    parse_line("x.log", 1, prefix.format(1) + PLAIN, prefixes=learnt)
    seen = [parse_line("x.log", 2, prefix.format(12) + t, prefixes=learnt).message for t in bare]
    assert seen == bare


def test_a_prefix_is_learnt_without_the_process_names_in_it() -> None:
    learnt = LearntPrefixes()
    parse_line("x.log", 1, f"pod-a (Actor pid=3) {HEADER}hello", prefixes=learnt)
    line = parse_line(
        "x.log", 2, "pod-a (APIServer pid=4) INFO:     Shutting down", prefixes=learnt
    )
    assert (line.process, line.message) == ("APIServer pid=4", "INFO:     Shutting down")


def test_what_no_header_taught_is_no_prefix() -> None:
    learnt = LearntPrefixes()
    parse_line("x.log", 1, PLAIN, prefixes=learnt)
    text = "pod-a INFO:     Application startup complete."
    assert parse_line("x.log", 2, text, prefixes=learnt).message == text


def test_a_json_message_of_several_lines_states_only_its_first() -> None:
    raw = json.dumps({"level": "ERROR", "message": f"failed\n{HEADER}{MESSAGE}",
                      "exc_info": "Traceback (most recent call last):\nValueError: x"})  # fmt: skip
    first, *later = parse_lines("x.log", 1, raw)
    assert (first.level, first.message) == ("ERROR", "failed")
    assert [line.message for line in later][-1] == "ValueError: x"
    assert all(line.continued and not line.is_logger for line in later)


def test_progress_bars_inside_json_are_split() -> None:
    pieces = list(split_progress(json.dumps({"log": f"Loading: 10%\r{PLAIN}\n"})))
    assert [parse_line("x.log", 1, piece).message for piece in pieces] == ["Loading: 10%", MESSAGE]


@pytest.mark.parametrize(
    "text",
    [
        "(a pid=1) ",
        "(",
        "[2026-01-01 10:00:00] ",
        "a | ",
        "\x1b[1m",
        "{",
        "2026-01-01 10:00:00 a",
        "[2026-01-01 10:00:00,1] [",
        "1: ",
        "\x1b_",
    ],
)
def test_no_line_takes_more_than_linear_time(text: str) -> None:
    """Would not end within a test run if it did."""
    assert parse_line("x.log", 1, text * (250_000 // len(text))).number == 1
