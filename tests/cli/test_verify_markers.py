"""``hwtune verify-markers`` as users call it."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree  # noqa: PLR0402 - the module is its own namespace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hwtune.cli import build_app
from hwtune.domain.errors import InputError, UsageError

GOOD = """\
(APIServer pid=7) INFO 11-30 06:51:30 [api_server.py:1] vLLM API server version 0.25.1
(EngineCore pid=9) INFO 11-30 06:51:37 [core.py:133] Initializing a V1 LLM engine (v0.25.1) with \
config: model='org/m', dtype=torch.bfloat16, max_seq_len=8192, enable_prefix_caching=False, x=1
(EngineCore pid=9) INFO 11-30 06:51:40 [cuda.py:423] Using FLASH_ATTN attention backend out of \
potential backends: ['FLASH_ATTN', 'TRITON_ATTN'].
(EngineCore pid=9) INFO 11-30 06:51:47 [interface.py:890] Setting attention block size to 832 \
tokens to ensure that attention page size is >= mamba page size.
(EngineCore pid=9) INFO 11-30 06:51:47 [interface.py:914] Padding mamba page size by 6.26% to \
ensure that mamba page size and attention page size are exactly equal.
(APIServer pid=7) INFO:     Application startup complete.
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "good.log"
    path.write_text(GOOD, encoding="utf-8")
    return path


def _run(*arguments: str, stdin: str | None = None) -> tuple[int, str]:
    app = build_app(["verify-markers"])
    result = CliRunner().invoke(app, ["verify-markers", *arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_a_good_log_passes(log: Path) -> None:
    status, text = _run(str(log), "--expect", "block_size=832", "--expect", "prefix_caching=off")
    assert status == 0
    assert "yes: planned 832, seen 832" in text
    assert text.rstrip().endswith("PASS: 3 passed")


def test_another_page_fails_with_causes_and_a_next_step(log: Path) -> None:
    status, text = _run(str(log), "--expect", "block_size=896")
    assert status == 1
    assert "FAIL page: expected 896 tokens, vLLM chose 832" in text
    assert "next:" in text


def test_json_names_facts_with_value_and_evidence(log: Path) -> None:
    status, text = _run(str(log), "--format", "json")
    data = json.loads(text)
    assert (status, data["passed"]) == (0, True)
    fact = data["facts"]["attention_block_size"]
    assert fact["value"] == 832
    assert fact["evidence"] == [
        {
            "file": str(log),
            "line": 4,
            "process": "EngineCore pid=9",
            "time": "11-30 06:51:47",
            "text": fact["evidence"][0]["text"],
        }
    ]
    assert data["facts"]["backend_candidates"]["value"] == ["FLASH_ATTN", "TRITON_ATTN"]
    assert "first_error" not in data["facts"]


def test_junit_counts_failures(log: Path) -> None:
    status, text = _run(str(log), "--expect", "block_size=896", "--format", "junit")
    suite = ElementTree.fromstring(text)
    assert status == 1
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    failure = suite.find("testcase[@name='page']/failure")
    assert failure is not None
    assert failure.get("message") == "expected 896 tokens, vLLM chose 832"


def test_junit_survives_control_characters(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"LLVM ERROR: \x01\x0b <&> \xff\n")
    status, text = _run(str(path), "--format", "junit")
    assert status == 1
    assert ElementTree.fromstring(text).get("failures") == "1"


def test_markdown_is_a_table(log: Path) -> None:
    _, text = _run(str(log), "--expect", "block_size=832", "--format", "markdown")
    assert "| page | PASS | 832 | 832 |" in text


def test_standard_input_and_gzip_are_read_alike(log: Path, tmp_path: Path) -> None:
    packed = tmp_path / "good.log.gz"
    packed.write_bytes(gzip.compress(GOOD.encode()))
    _, plain = _run(str(log), "--format", "json")
    _, unpacked = _run(str(packed), "--format", "json")
    _, piped = _run("-", "--format", "json", stdin=GOOD)
    assert plain.replace(str(log), "-") == unpacked.replace(str(packed), "-") == piped


def test_several_logs_of_one_server_are_merged(log: Path, tmp_path: Path) -> None:
    second = tmp_path / "worker.log"
    second.write_text(
        "(EngineCore pid=9) INFO 11-30 06:51:47 [kv_cache_utils.py:1] kv lcm block sizes 832\n"
    )
    _, text = _run(str(log), str(second), "--format", "json")
    assert json.loads(text)["facts"]["scheduler_block_size"]["evidence"][0]["file"] == str(second)


def test_a_growing_log_is_followed_to_the_end_of_its_start(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hwtune.domain.following.AFTER_START_S", 0.0)
    status, text = _run(str(log), "--follow", "--expect", "block_size=832")
    assert status == 0
    assert "attention_block_size 832  (" in text
    assert "followed until: nothing more to wait for" in text
    cut = log.with_name("cut.log")
    cut.write_text("".join(GOOD.splitlines(keepends=True)[:4]))
    status, text = _run(str(cut), "--follow", "--timeout", "0")
    assert status == 1
    assert "the log ends before start-up completed" in text


def test_an_earlier_start_can_be_judged(log: Path) -> None:
    log.write_text(GOOD + GOOD.replace("832", "896").replace("pid=7", "pid=17"))
    assert _run(str(log), "--expect", "block_size=896")[0] == 0
    assert _run(str(log), "--expect", "block_size=832", "--start", "1")[0] == 0
    with pytest.raises(InputError, match="shows 2 start"):
        _run(str(log), "--start", "3")


def test_hits_in_a_log_need_its_nonce(log: Path) -> None:
    at = "(Worker pid=9) INFO 11-30 06:51:47 [runtime.py:47] hwtune[a1] "
    with log.open("a", encoding="utf-8") as file:
        file.write(f"{at}registered backend=CUSTOM class=X alignment=64 kernels=k1\n")
        file.write(f"{at}first hit kernel=k1 query=64 context=1024 block_size=832\n")
    status, text = _run(str(log), "--expect", "hits=k1")
    assert status == 1
    assert "pass --nonce or --run-dir" in text.splitlines()[-1]
    assert _run(str(log), "--expect", "hits=k1", "--nonce", "a1")[0] == 0
    assert _run(str(log), "--expect", "hits=k1", "--nonce", "b2")[0] == 1
    status, text = _run(str(log))
    assert status == 0
    assert "nonce not verified" in text


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], UsageError),
        (["missing.log"], InputError),
        (["--run-dir", "missing"], InputError),
        (["--url", "ftp://x"], UsageError),
        (["x.log", "--follow", "--url", "http://x"], UsageError),
        (["x.log", "--follow", "--start", "2"], UsageError),
        (["x.log", "--timeout", "2"], UsageError),
        (["x.log", "--until", "stopped"], UsageError),
        (["x.log", "--nonce", ""], UsageError),
    ],
)
def test_bad_input_is_named(arguments: list[str], error: type[Exception]) -> None:
    with pytest.raises(error):
        _run(*arguments)


def test_two_expectations_of_one_fact_are_refused_and_hits_add_up(log: Path) -> None:
    pages = ("--expect", "block_size=896", "--expect", "block_size=832")
    with pytest.raises(UsageError, match="'block_size=896' was expected before"):
        _run(str(log), *pages)
    assert _run(str(log), "--expect", "block_size=832", "--expect", "page = 832")[0] == 0
    hits = ("--nonce", "a1", "--expect", "hits=k1", "--expect", "hits=k2")
    _, text = _run(str(log), *hits)
    assert "kernel:k1" in text
    assert "kernel:k2" in text


def test_a_run_that_is_yet_to_begin_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hwtune.adapters.following.POLL_S", 0.01)
    monkeypatch.setattr("hwtune.domain.following.AFTER_START_S", 0.0)
    run_dir = tmp_path / "run"

    def begin() -> None:
        time.sleep(0.2)
        run_dir.mkdir()
        (run_dir / "server.log").touch()  # the launcher makes the log first, then the plan
        time.sleep(0.1)
        (run_dir / "server.log").write_text(GOOD, encoding="utf-8")

    thread = threading.Thread(target=begin)
    thread.start()
    status, text = _run("--run-dir", str(run_dir), "--follow", "--timeout", "20")
    thread.join()
    assert status == 0, text
    assert f"waiting for a run in {run_dir}" in text


def test_a_run_that_never_begins_is_named_when_the_time_is_over(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such run directory"):
        _run("--run-dir", str(tmp_path / "never"), "--follow", "--timeout", "0")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="no such run directory"):
        _run("--run-dir", str(tmp_path / "file"), "--follow")


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1"])
def test_a_wait_is_a_finite_number_of_seconds(log: Path, seconds: str) -> None:
    assert _run(str(log), "--follow", "--timeout", seconds)[0] == 2


@pytest.mark.parametrize(
    ("data", "status"), [(b"", 3), (b"\0\1\2", 3), (b"x" * 2_000_000, 1), (b"\xff\xfe\n" * 9, 1)]
)
def test_bad_logs_never_give_a_traceback(tmp_path: Path, data: bytes, status: int) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(data)
    program = "import sys; from hwtune.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "verify-markers", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == (1 if status == 3 else 0)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--expect", "block_size=896"], "--expect"),
        (["--no-require-hits"], "--require-hits"),
        (["--url", "http://127.0.0.1:1", "--follow"], "--url, --follow"),
        (["other.log"], "'other.log'"),
    ],
)
def test_compare_passes_over_no_question(log: Path, options: list[str], named: str) -> None:
    """A gate beside --compare would never be looked at, and the command would say yes."""
    with pytest.raises(UsageError, match=f"leave out {named}$"):
        _run("--compare", str(log), str(log), *options)


def test_allow_without_compare_is_refused(log: Path) -> None:
    with pytest.raises(UsageError, match="--allow has no effect without --compare"):
        _run(str(log), "--allow", "vllm_version")
