"""`hwtune ab-bench serving` from the outside, against mock servers that are already up."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from hwtune.adapters.load.mock_frames import Behaviour
from hwtune.adapters.load.mock_thread import running_mock
from hwtune.cli import ab_bench
from hwtune.cli.ab_bench import app
from hwtune.domain.errors import HwtuneError
from hwtune.domain.workload import Design

pytestmark = pytest.mark.usefixtures("on_time")

FAST = Behaviour(ttft_s=0.002, tpot_s=0.001)
SMALL = [
    *("--tier", "100-200", "--blocks", "6", "--prompts-per-tier", "6"),
    *("--output-tokens", "8", "--warm-up", "1", "--vocab-size", "1000", "--settle", "0"),
]

URLS = ["m", "--vocab-size", "99", "--baseline-url", "http://a:1", "--candidate-url", "http://b:1"]


def _invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["serving", *arguments])


def _serve(run_dir: Path, candidate: Behaviour, *arguments: str) -> Result:
    with running_mock(FAST) as (url_a, _), running_mock(candidate) as (url_b, _):
        urls = ["--baseline-url", url_a, "--candidate-url", url_b]
        return _invoke("m", *urls, *SMALL, "--run-dir", str(run_dir), *arguments)


def _status(result: Result) -> int:
    """What ``hwtune`` exits with: its ``main`` turns these errors into their status."""
    if isinstance(result.exception, HwtuneError):
        return result.exception.exit_status
    return result.exit_code


def test_a_run_writes_its_files_and_says_what_the_answer_is(tmp_path: Path) -> None:
    result = _serve(tmp_path / "run", Behaviour(ttft_s=0.02, tpot_s=0.004))
    assert result.exit_code == 1, result.output
    assert "slower" in result.stdout and "Tier 100-200" in result.stdout
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        *("design.json", "requests.jsonl"),
        *("comparison.json", "report.md", "report.html"),
    }
    comparison = json.loads((tmp_path / "run" / "comparison.json").read_text())
    assert comparison["scope"] == "serving"
    # Where the machine is full, single metrics may stay undecided.
    kinds = {m["verdict"]["kind"] for m in comparison["tiers"][0]["metrics"]}
    assert {"slower"} <= kinds <= {"slower", "inconclusive"}


def test_a_result_that_cannot_be_written_is_shown_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "run" / "report.html").mkdir(parents=True)
    result = _serve(tmp_path / "run", FAST)
    assert "Tier 100-200" in result.stdout
    assert _status(result) == 6 and "report.html" in str(result.exception)


def test_progress_goes_to_stderr_and_the_result_alone_to_stdout(tmp_path: Path) -> None:
    result = _serve(tmp_path / "run", FAST, "--format", "json")
    data = json.loads(result.stdout)
    assert data["tiers"][0]["pairs_done"] == 6
    assert "[12/12]" in result.stderr and "excluded" in result.stderr
    assert "so far median TTFT " in result.stderr
    assert "% (provisional)" in result.stderr


def test_no_change_is_shown_while_a_gate_of_the_tier_is_red(tmp_path: Path) -> None:
    result = _serve(tmp_path / "run", Behaviour(ttft_s=0.0005, tpot_s=0.0001, text="degenerate"))
    assert "so far RED: sane output" in result.stderr and "%" not in result.stderr


def test_csv_has_one_line_per_tier_and_metric(tmp_path: Path) -> None:
    result = _serve(tmp_path / "run", FAST, "--format", "csv")
    rows = list(csv.DictReader(result.stdout.splitlines()))
    assert [row["metric"] for row in rows][:4] == ["ttft", "tpot", "itl", "e2el"]
    assert {row["scope"] for row in rows} == {"serving"}


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (Behaviour(ttft_s=0.0005, tpot_s=0.0001, text="degenerate"), "output degenerate"),
        (Behaviour(ttft_s=0.0005, tpot_s=0.0001, fault="http 500"), "requests failed"),
        (Behaviour(ttft_s=0.0005, tpot_s=0.0001, fault="silent truncation"), "truncated stream"),
        (Behaviour(ttft_s=0.0005, tpot_s=0.0001, prompt_token_error=1), "input tokens differ"),
    ],
)
def test_a_trap_is_not_comparable_and_shows_no_change(
    tmp_path: Path, candidate: Behaviour, reason: str
) -> None:
    result = _serve(tmp_path / "run", candidate)
    assert result.exit_code == 1
    assert "not comparable" in result.stdout and reason in result.stdout
    assert "faster" not in result.stdout
    assert "%]" not in result.stdout and "] %" not in result.stdout


def test_a_server_that_dies_exits_6_says_what_is_missing_and_can_be_resumed(
    tmp_path: Path,
) -> None:
    run_dir = tmp_path / "run"
    with running_mock(FAST) as (url_a, _):
        with running_mock(Behaviour(fault="die", fault_every=4, ttft_s=0.002, tpot_s=0.0002)) as (
            url_b,
            _,
        ):
            port = int(url_b.rsplit(":", 1)[1])
            urls = ["--baseline-url", url_a, "--candidate-url", url_b]
            result = _invoke("m", *urls, *SMALL, "--run-dir", str(run_dir))
        assert _status(result) == 6
        assert "the server is gone" in str(result.exception)
        assert "missing: " in result.stderr and f"--resume {run_dir}" in result.stderr
        assert (run_dir / "comparison.json").exists()
        with running_mock(FAST, port):
            result = _invoke("--resume", str(run_dir), "--format", "json")
    assert _status(result) in (0, 1), result.output
    data = json.loads(result.stdout)
    assert data["tiers"][0]["pairs_done"] == 6
    assert all(gate["state"] == "passed" for gate in data["tiers"][0]["gates"])


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        ([], 2, "MODEL is missing"),
        (["m"], 2, "--profile is missing"),
        (["m", "--profile", "cpu"], 3, "--vocab-size"),
        (["m", "--baseline-url", "http://h:1"], 2, "belong together"),
        (["m", "--profile", "cpu", "--vocab-size", "1"], 3, "too small"),
        (["m", "--profile", "cpu", "--vocab-size", "99", "--tier", "x"], 2, "--tier x"),
        (["m", "--profile", "cpu", "--vocab-size", "99", "--blocks", "0"], 2, "--blocks"),
        (["--resume", "nowhere"], 3, "not a run directory"),
        (["m", "--resume", "nowhere"], 2, "give it alone, without m"),
        (["--resume", "x", "--aa", "6", "--restart"], 2, "without --aa, --restart"),
        (["--resume", "x", "--settle", "1.5"], 2, "without --settle"),
        (["--resume", "x", "--dtype=half"], 2, "--dtype=half"),
        ([*URLS, "--baseline-url", "wss://h:1"], 2, "--baseline-url 'wss://h:1'"),
        ([*URLS, "--candidate-url", "h:1"], 2, "expected http://HOST:PORT"),
        ([*URLS, "--candidate-url", "http://h"], 2, "expected http://HOST:PORT"),
        ([*URLS, "--candidate-url", "http://h:0"], 2, "expected http://HOST:PORT"),
        ([*URLS, "--candidate-url", "http://h:65536"], 2, "expected http://HOST:PORT"),
        ([*URLS, "--candidate-url", "http://h:x"], 2, "expected http://HOST:PORT"),
        ([*URLS, "--candidate-url", "http://[h:1"], 2, "expected http://HOST:PORT"),
        ([*URLS, "--candidate-url", "http://h:1\n"], 2, "expected http://HOST:PORT"),
        ([*URLS, "--candidate-url", "http://A:1/v1"], 2, "use --aa"),
        ([*URLS, "--max-model-len", "8192"], 2, "--max-model-len"),
        ([*URLS, "--profile", "cpu"], 2, "--baseline-run and --candidate-run"),
        ([*URLS, "--settle", "nan"], 2, "--settle nan"),
        ([*URLS, "--settle", "-1"], 2, "--settle -1"),
        ([*URLS, "--request-timeout", "inf"], 2, "--request-timeout inf"),
        ([*URLS, "--request-timeout", "0"], 2, "--request-timeout 0"),
        ([*URLS, "--ready-timeout", "nan"], 2, "--ready-timeout nan"),
        ([*URLS, "--port", "8000"], 2, "--port has no effect with URLs"),
        ([*URLS, "--ready-timeout", "9"], 2, "--ready-timeout has no effect"),
        (["m", "--profile", "cpu", "--insecure"], 2, "--insecure has no effect"),
        (["m", "--profile", "cpu", "--candidate-run", "x"], 2, "--candidate-run has no effect"),
        (["m", "--profile", "cpu", "--restart", "--settle", "1"], 2, "--settle has no effect"),
        ([*URLS, "--margin", "nan"], 2, "--margin"),
        ([*URLS, "--aa", "5"], 2, "--aa 5: at least 6 or 0"),
        ([*URLS, "--aa", "-1"], 2, "--aa -1: at least 6 or 0"),
        ([*URLS, "--aa", "99999999999999999999"], 2, "--aa must be at most 10000"),
        ([*URLS, "--prompts-per-tier", str(10**9)], 2, "at most 1000000"),
        ([*URLS, "--tier", "4096-10000001"], 2, "at most 10000000 tokens"),
    ],
)
def test_bad_input_is_one_line_with_its_status(
    arguments: list[str], status: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = _invoke(*arguments)
    assert list(tmp_path.iterdir()) == []
    assert _status(result) == status
    assert isinstance(result.exception, HwtuneError)
    assert text in str(result.exception) and "\n" not in str(result.exception)


def test_a_missing_run_directory_of_a_url_is_bad_input(tmp_path: Path) -> None:
    result = _serve(tmp_path / "run", FAST, "--baseline-run", str(tmp_path / "none"))
    assert _status(result) == 3 and "no such run directory" in str(result.exception)


def test_nothing_listening_is_an_outside_failure(tmp_path: Path) -> None:
    urls = ["--baseline-url", "http://127.0.0.1:9", "--candidate-url", "http://127.0.0.1:19"]
    result = _invoke("m", *urls, *SMALL, "--run-dir", str(tmp_path / "run"))
    assert _status(result) == 6 and "127.0.0.1:9" in str(result.exception)


def test_flags_of_vllm_are_kept_for_both_arms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Design] = []
    monkeypatch.setattr(ab_bench, "_finish", lambda session, *_: kept.append(session.design))
    monkeypatch.chdir(tmp_path)
    _invoke("m", "--profile", "cpu", *SMALL, "--max-model-len", "8192", "--kv-cache-dtype=fp8")
    assert kept[0].flags == ("--max-model-len", "8192", "--kv-cache-dtype=fp8")


@pytest.mark.parametrize("option", [("--margin", "nan"), ("--margin", "0"), ("--confidence", "1")])
def test_compare_refuses_a_margin_or_confidence_that_decides_nothing(
    tmp_path: Path, option: tuple[str, str]
) -> None:
    result = CliRunner().invoke(app, ["compare", str(tmp_path), str(tmp_path), *option])
    assert _status(result) == 2 and option[0] in str(result.exception)


def test_the_self_test_shows_reported_beside_true() -> None:
    result = CliRunner().invoke(app, ["self-test", "--streams", "1", "--format", "json"])
    data = json.loads(result.stdout)
    assert data["faults_not_recognised"] == []
    (check,) = data["streams"]
    assert check["failed"] == 0 and check["requests"] == 4
    assert result.exit_code == (1 if check["problems"] else 0)


def test_the_self_test_refuses_no_streams() -> None:
    result = CliRunner().invoke(app, ["self-test", "--streams", "0"])
    assert _status(result) == 2


def test_a_saved_run_of_ours_can_be_judged_again(tmp_path: Path) -> None:
    _serve(tmp_path / "run", Behaviour(ttft_s=0.02, tpot_s=0.004))
    again = CliRunner().invoke(app, ["compare", str(tmp_path / "run"), "--format", "json"])
    assert again.exit_code == 1
    first = json.loads((tmp_path / "run" / "comparison.json").read_text())
    assert json.loads(again.stdout)["tiers"] == first["tiers"]


def test_a_run_that_could_not_begin_leaves_its_directory_free(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    result = _serve(run_dir, FAST, "--baseline-run", str(tmp_path / "none"))
    assert _status(result) == 3 and "missing:" not in result.stderr
    assert _serve(run_dir, FAST).exit_code in (0, 1)
    again = _serve(run_dir, FAST)
    assert _status(again) == 3 and "--resume" in str(again.exception)


@pytest.mark.parametrize(
    ("rules", "status"),
    [
        (["ttft slower than 5%"], 1),
        (["ttft_p50 slower than 5%"], 1),
        (["ttft slower than 90000%", "tpot_p99 slower than 90000% in 100-200"], 0),
        (["request_throughput maybe slower than 1%"], 1),
        (["e2el not faster than 1%"], 1),
    ],
)
def test_rules_decide_the_exit_status_and_junit_and_parquet_are_written(
    tmp_path: Path, rules: list[str], status: int
) -> None:
    junit, parquet = tmp_path / "junit.xml", tmp_path / "table.parquet"
    options = [word for rule in rules for word in ("--fail-if", rule)]
    files = ["--junit", str(junit), "--parquet", str(parquet)]
    slow = Behaviour(ttft_s=0.08, tpot_s=0.004)
    result = _serve(tmp_path / "run", slow, *options, *files)
    assert result.exit_code == status, result.output
    assert result.stderr.count("fail-if 100-200: ") == len(rules)
    suite = ElementTree.parse(junit).getroot()
    names = [case.attrib["name"] for case in suite if "fail-if" in case.attrib["classname"]]
    assert names == rules
    pyarrow = pytest.importorskip("pyarrow.parquet")
    rows = pyarrow.read_table(parquet).to_pylist()
    assert [row["metric"] for row in rows][:2] == ["ttft", "tpot"]
    assert rows[0]["candidate_p50"] > rows[0]["baseline_p50"]
    again = CliRunner().invoke(app, ["compare", str(tmp_path / "run"), *options])
    assert again.exit_code == status


@pytest.mark.parametrize(
    "rule", ["nonsense", "ttft slower than 3% in 4-8K", "goodput slower than 3%"]
)
def test_a_rule_that_is_none_is_refused_before_anything_is_measured(
    tmp_path: Path, rule: str
) -> None:
    result = _serve(tmp_path / "run", FAST, "--fail-if", rule)
    assert _status(result) == 2 and not (tmp_path / "run").exists()


def test_a_run_is_judged_again_by_another_margin_and_confidence(tmp_path: Path) -> None:
    _serve(tmp_path / "run", FAST)
    command = ["compare", str(tmp_path / "run"), "--format", "json"]
    data = json.loads(CliRunner().invoke(app, command).stdout)
    assert (data["margin"], data["confidence"]) == (0.02, 0.95)
    first = [metric["interval"] for metric in data["tiers"][0]["metrics"]]
    wide = [*command, "--margin", "0.9", "--confidence", "0.6"]
    data = json.loads(CliRunner().invoke(app, wide).stdout)
    assert (data["margin"], data["confidence"]) == (0.9, 0.6)
    second = [metric["interval"] for metric in data["tiers"][0]["metrics"]]
    assert all(a[0] < b[0] < b[1] < a[1] for a, b in zip(first, second, strict=True))


def test_an_exported_run_is_read_back_as_what_vllms_client_would_have_saved(
    tmp_path: Path,
) -> None:
    run_dir = tmp_path / "run"
    _serve(run_dir, Behaviour(ttft_s=0.02, tpot_s=0.004, tokens_per_chunk=2))
    result = CliRunner().invoke(app, ["export", str(run_dir)])
    assert result.exit_code == 0, result.output
    paths = [Path(line) for line in result.stdout.splitlines()]
    assert [str(path.relative_to(run_dir)) for path in paths] == [
        f"vllm-bench/{arm}/result_100-200.json" for arm in ("baseline", "candidate")
    ]
    data = json.loads(paths[1].read_text())
    assert (data["completed"], data["failed"], data["total_output_tokens"]) == (6, 0, 48)
    assert [len(gaps) for gaps in data["itls"]] == [3] * 6, "per chunk, as vLLM has it"
    tpot = [sum(gaps) / 7 * 1e3 for gaps in data["itls"]]
    assert data["mean_tpot_ms"] == pytest.approx(sum(tpot) / 6)
    assert data["median_ttft_ms"] >= 20.0
    sides = [str(path.parent) for path in paths]
    again = CliRunner().invoke(app, ["compare", *sides, "--format", "json"])
    tier = json.loads(again.stdout)["tiers"][0]
    assert tier["metrics"][0]["verdict"]["kind"] in ("slower", "inconclusive")
    assert tier["metrics"][0]["ratio"] > 2
    ours = json.loads((run_dir / "comparison.json").read_text())["tiers"][0]["metrics"]
    assert tier["metrics"][0]["candidate"] == pytest.approx(ours[0]["candidate"])
    named = CliRunner().invoke(app, ["compare", f"{run_dir}:baseline", f"{run_dir}:candidate"])
    assert "needs 6 prompts" not in named.stdout and "FAILED" not in named.stdout
    both = CliRunner().invoke(app, ["compare", str(run_dir), str(run_dir)])
    assert _status(both) == 3 and "name one" in str(both.exception)


def test_a_key_that_would_end_a_header_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_OF_THE_TEST", "secret\n")
    result = _serve(tmp_path / "run", FAST, "--api-key-env", "KEY_OF_THE_TEST")
    assert _status(result) == 3
    assert "holds a line end" in str(result.exception) and "secret" not in str(result.exception)
