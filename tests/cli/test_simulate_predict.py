"""``hwtune simulate MODEL`` as users call it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hwtune.cli import build_app
from hwtune.domain.errors import HwtuneError

ROOT = Path(__file__).parents[2]
TINY = str(ROOT / "examples" / "tiny-qwen3.5")
EVERY_SHAPE = str(ROOT / "examples" / "tiny-qwen3.5" / "every-shape.toml")
SERVER = (TINY, "--profile", EVERY_SHAPE, "--vllm-version", "0.32.0", "--max-model-len", "65536")
DRAFTS = ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 2}')
OFF = "--no-enable-prefix-caching"


def run(*arguments: str) -> tuple[int, str]:
    """(exit status, output) of the command; an error's line is the output."""
    result = CliRunner().invoke(build_app(["simulate"]), ["simulate", *arguments])
    if isinstance(result.exception, HwtuneError):
        return result.exception.exit_status, str(result.exception)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def record(*arguments: str) -> dict[str, Any]:
    status, output = run(*SERVER, "--format", "json", *arguments)
    assert status == 0, output
    answer: dict[str, Any] = json.loads(output)
    return answer


def kernels(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {kernel["kernel"]: kernel for kernel in answer["kernels"]}


def test_one_request_after_the_other_hits_with_every_step() -> None:
    answer = record("--tier", "4-8K", "--requests", "6", "--output-tokens", "40", OFF)
    assert answer["server"]["page_tokens"] == 832
    assert len(answer["server"]["cache_groups"]) == 4
    assert answer["server"]["max_num_batched_tokens"] == 2048
    found = kernels(answer)
    assert found["vendor_prefill"]["hit_rate"] == found["page_decode"]["hit_rate"] == 1.0
    # Six answers of 40 tokens: the first token comes with the prompt.
    assert found["page_decode"]["hit_steps"] == 6 * 39
    assert found["vendor_prefill"]["fallbacks"] == {"query shorter than 2": 6 * 39}
    assert sum(answer["steps"]["by_path"].values()) == answer["steps"]["all"]
    shares = [found[name]["attention_flops_share"] for name in found]
    assert sum(shares) == pytest.approx(1.0)


def test_four_at_a_time_leave_a_small_part() -> None:
    answer = record(
        *("--tier", "4-8K", "--requests", "12", "--output-tokens", "40", "--concurrency", "4"), OFF
    )
    kernel = kernels(answer)["vendor_prefill"]
    assert 0 < kernel["hit_rate"] < 0.3
    most = max(kernel["fallbacks"], key=kernel["fallbacks"].get)
    assert most == "more than one sequence"
    assert answer["finished"] == 12


def test_the_baseline_page_refuses_a_kernel_for_good() -> None:
    answer = record("--profile", "gfx936", "--arm", "baseline", "--request", "100:4", OFF)
    reasons = kernels(answer)["vendor_prefill"]["fallbacks"]
    assert answer["server"]["page_tokens"] == 784
    assert len(reasons) == 1
    assert kernels(answer)["vendor_prefill"]["hit_steps"] == 0


def test_memory_limits_the_pool() -> None:
    work = ("--tier", "2-4K", "--requests", "12", "--output-tokens", "200", "--concurrency", "12")
    tight = record(*work, "--kv-cache-memory", "8MiB", "--max-model-len", "4096", OFF)
    assert tight["server"]["num_blocks"] == 39
    assert record(*work, OFF)["server"]["num_blocks"] is None
    assert tight["steps"]["all"] > 2 * record(*work, OFF)["steps"]["all"]


def test_a_prediction_is_labelled_and_is_an_interval() -> None:
    ratio = ("--kernel-ratio", "vendor_prefill=2.8,2.75,2.92", "--attention-share", "0.3,0.25,0.35")
    work = ("--tier", "16-32K", "--requests", "4", OFF)
    found = record(*work, *ratio)["prediction"]
    assert "not a measurement" in found["what"]
    assert 0 < found["low_pct"] < found["high_pct"] < 60
    status, text = run(*SERVER, *work, *ratio)
    assert status == 0
    assert "PREDICTION, not a measurement" in text


def test_a_sweep_says_where_the_hit_rate_falls(tmp_path: Path) -> None:
    plot = tmp_path / "sweep.svg"
    work = ("--tier", "4-8K", "--requests", "8", "--output-tokens", "40", OFF)
    status, text = run(*SERVER, *work, "--sweep", "concurrency=1,8", "--plot", str(plot))
    assert status == 0
    assert "vendor_prefill: the hit rate falls below 50 % at concurrency 2" in text
    assert max(map(len, text.splitlines())) <= 100
    assert plot.read_text().count("<circle") == 4
    status, text = run(
        *SERVER, *work, "--sweep", "budget=1024,4096 page=832,896", "--format", "csv"
    )
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["budget"], row["page"]) for row in rows] == [
        ("1024", "832"),
        ("1024", "896"),
        ("4096", "832"),
        ("4096", "896"),
    ]
    assert int(rows[0]["prefill_steps"]) > int(rows[3]["prefill_steps"])


def test_the_step_table_of_a_small_example() -> None:
    work = ("--request", "3:3", "--request", "12:2@2", "--max-num-batched-tokens", "6", OFF)
    status, text = run(*SERVER, *work, "--trace")
    assert status == 0
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert [line.split()[2:5] for line in lines if " B " in line][:3] == [
        ["0>5", "12", "5"],
        ["prompt", "5>11", "12"],
        ["prompt", "11>12", "12"],
    ]


def test_a_timeline_is_written(tmp_path: Path) -> None:
    page = tmp_path / "t.html"
    status, _ = run(*SERVER, "--tier", "1-2K", "--requests", "3", "--timeline", str(page), OFF)
    assert status == 0
    assert page.read_text().startswith("<!doctype html>")


def test_a_shared_prefix_saves_tokens_when_it_is_cached() -> None:
    work = ("--tier", "8-16K", "--requests", "4", "--output-tokens", "4")
    shared = (*work, "--shared-prefix", "6656")
    without = record(*shared, OFF)["work"]["tokens"]
    assert record(*shared, "--enable-prefix-caching")["work"]["tokens"] < without
    assert record(*work, "--enable-prefix-caching")["work"]["tokens"] == without


def test_arrivals_by_the_clock_say_what_was_assumed(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_ms,prompt_tokens,output_tokens\n0,500,5\n2,500,5\n900,500,5\n")
    timing = ("--step-ms", "20", "--token-ms", "0.01")
    status, text = run(*SERVER, "--arrivals", str(trace), *timing, OFF)
    assert status == 0
    assert "20 ms + 0.01 ms per token; nothing here predicts it" in text
    answer = record("--arrival", "poisson:50", "--tier", "1-2K", "--requests", "20", *timing, OFF)
    assert answer["simulated_ms"] > 100
    assert answer["workload"]["step_ms"] == 20.0


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        ((TINY,), 2, "--profile is missing"),
        (("--profile", "cpu"), 2, "model is missing"),
        ((*SERVER, "--arrival", "poisson:1"), 2, "--step-ms"),
        ((*SERVER, "--arrival", "sometimes"), 2, "--arrival sometimes"),
        ((*SERVER, "--request", "1"), 2, "PROMPT:OUTPUT"),
        ((*SERVER, "--request", "1:1", "--tier", "1-2K"), 2, "do not go together"),
        ((*SERVER, "--kernel-ratio", "vendor_prefill=2"), 2, "need one another"),
        (
            (*SERVER, "--kernel-ratio", "x=2", "--attention-share", "0.3"),
            2,
            "vendor_prefill, page_decode",
        ),
        ((*SERVER, "--plot", "x.svg"), 2, "--plot needs --sweep"),
        ((*SERVER, "--accepted", "1"), 2, "--accepted has no effect without drafts"),
        ((*SERVER, *DRAFTS, "--accepted", "3"), 2, "--accepted 3: expected whole numbers from 0"),
        ((*SERVER, "--npu", "A3"), 2, "--npu has no effect"),
        ((*SERVER, "--below", "0.4"), 2, "--below has no effect"),
        ((*SERVER, "--step-ms", "4"), 2, "--step-ms has no effect"),
        ((*SERVER, "--arrival", "burst", "--concurrency", "2"), 2, "--concurrency has no effect"),
        ((*SERVER, "--request", "1:1", "--output-tokens", "2"), 2, "--output-tokens has no"),
        ((*SERVER, "--request", "1:1", "--requests", "2"), 2, "--requests has no effect"),
        ((*SERVER, "--arrival", "poisson:1", "--step-ms", "1e300"), 2, "from 0 to 1e+09"),
        ((*SERVER, "--sweep", ""), 2, "names no axis"),
        ((*SERVER, "--sweep", "page=832 page=896"), 2, "given twice"),
        ((*SERVER, "--requests", str(10**9)), 2, "at most 1000000"),
        ((*SERVER, "--page", str(2**40)), 2, "must be from 1"),
        (("--batch", "-", "--tier", "1-2K"), 2, "leave out --tier"),
        (("--batch", "-", TINY), 2, "leave out '"),
        (("--against", "/nowhere", "--page", "832"), 2, "leave out --page"),
        ((*SERVER, "--trace", "--sweep", "budget=64"), 2, "do not go together"),
        ((*SERVER, "--scheduler-cls", "a.B"), 2, "--scheduler-cls"),
        ((*SERVER, "--pipeline-parallel-size", "2"), 2, "pipeline"),
        ((*SERVER, "--page", "500"), 4, "cannot hold the recurrent state"),
        ((*SERVER, "--arrivals", "/nowhere.csv", "--step-ms", "1"), 3, "/nowhere.csv"),
        ((*SERVER, "--oracle"), 2, "--oracle needs --batch"),
        (("--against", "/nowhere"), 3, "/nowhere"),
        (
            (TINY, "--profile", "ascend-910b", "--additional-config", '{"scheduler_config": {}}'),
            2,
            "scheduler_config",
        ),
    ],
)
def test_refusals_are_one_clear_line(arguments: tuple[str, ...], status: int, says: str) -> None:
    code, text = run(*arguments)
    assert (code, says in text) == (status, True), text
    assert "\n" not in text.strip()


def test_a_stuck_prediction_counts_the_blocks_that_admission_wants() -> None:
    """Align mode keeps two states per group, not one for every page of the prompt."""
    status, text = run(*SERVER, "--request", "50000:4", "--kv-cache-memory", "8MiB")
    assert status == 1
    assert "stuck: 1 request is never served" in text
    # 61 pages of 832 tokens, and one state in each of the three recurrent groups.
    assert "50000 tokens take 64 blocks in 4 cache groups" in text


def test_a_sweep_names_the_settings_that_get_stuck_and_says_no_when_all_do() -> None:
    work = ("--request", "50000:4", "--kv-cache-memory", "8MiB")
    status, text = run(*SERVER, *work, "--sweep", "budget=1024,2048")
    assert status == 1
    assert "note: at budget=1024: stuck: 1 request is never served" in text
    # The pool holds 38 pages of 832 tokens, or 3 of ten times as many: too few for four groups.
    tokens = "--max-model-len", "65536", "--request", "24000:4", "--kv-cache-memory", "8MiB"
    status, text = run(*SERVER, *tokens, "--sweep", "page=832,8320")
    assert (status, "note: at page=8320: stuck" in text) == (0, True)
    assert "at page=832:" not in text


def test_nothing_to_play_is_bad_input() -> None:
    status, text = run(*SERVER, "--request", "70000:4")
    assert status == 3
    assert text == "no prompt is below max_model_len 65536: vLLM would refuse every request"


@pytest.mark.parametrize("pace", [("--concurrency", "4"), ("--arrival", "burst")])
def test_requests_with_their_own_times_take_no_pace(pace: tuple[str, ...]) -> None:
    status, text = run(*SERVER, "--request", "7:4", *pace)
    assert status == 2
    assert "--request says itself when to send" in text
