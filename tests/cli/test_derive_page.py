"""``hwtune derive-page`` as users call it."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hwtune.cli import build_app
from hwtune.domain.errors import HwtuneError

ROOT = Path(__file__).parents[2]
TINY = str(ROOT / "examples" / "tiny-qwen3.5")
VERSION = ("--vllm-version", "0.32.0")


def run(*arguments: str, stdin: str | None = None) -> tuple[int, str]:
    """(exit status, output) of the command; an error's line is the output."""
    result = CliRunner().invoke(build_app(["derive-page"]), ["derive-page", *arguments], stdin)
    if isinstance(result.exception, HwtuneError):
        return result.exception.exit_status, str(result.exception)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def record(*arguments: str) -> dict[str, Any]:
    status, output = run(TINY, *VERSION, "--format", "json", *arguments)
    assert status == 0
    answer: dict[str, Any] = json.loads(output)
    return answer


def test_the_pages_of_the_tiny_model_on_cpu() -> None:
    answer = record("--profile", "cpu")
    assert answer["default"]["block_size"] == 896
    assert answer["required"]["block_size"] == 832
    assert answer["minimum"]["block_size"] == 832
    assert round(answer["default"]["padding_pct"], 2) == 14.43
    assert round(answer["required"]["padding_pct"], 2) == 6.26
    assert [option["block_size"] for option in answer["options"]] == [784, 800, 832, 896, 1024]


def test_capacity_as_real_vllm_counts_it() -> None:
    flags = ("--max-model-len", "8192", "--profile", "cpu")
    on = record("--kv-cache-memory", "4GiB", "--enable-prefix-caching", *flags)
    capacity = on["default"]["capacity"]
    assert capacity["num_blocks"] == 18_724
    assert capacity["blocks_per_request"] == 16
    assert capacity["requests"] == pytest.approx(1170.25)
    assert capacity["cache_tokens"] == 9_586_688
    off = record("--kv-cache-memory", "1GiB", "--no-enable-prefix-caching", *flags)
    assert off["default"]["capacity"]["cache_tokens"] == 2_949_750
    assert off["required"]["capacity"]["cache_tokens"] == 3_176_605


@pytest.mark.parametrize("order", ["after", "model flag"])
def test_a_pasted_vllm_command_line(order: str) -> None:
    flags = ("-tp", "1", "--kv_cache_dtype=fp8", "--port", "8000", "--no-enable-prefix-caching")
    own = ("--profile", "gfx936", "--format", "json", *VERSION)
    first = (TINY, *own, *flags) if order == "after" else (*own, *flags, "--model", TINY)
    status, output = run(*first)
    assert status == 0
    assert json.loads(output)["default"]["block_size"] == 1568


def test_the_table_says_which_page_is_which() -> None:
    status, output = run(TINY, "--profile", "gfx936", *VERSION)
    assert status == 0
    rows = {line.split()[0]: line for line in output.splitlines() if line[:1] == " "}
    assert "vLLM's default" in rows["784"]
    assert "what gfx936's kernels require, minimum compatible" in rows["832"]


def test_the_assumed_profile_is_named() -> None:
    _, output = run(TINY, *VERSION)
    assert "no --profile given, so sm_90 is assumed" in output
    assert not record("--profile", "cpu")["remarks"]


def test_csv_and_markdown() -> None:
    status, output = run(TINY, "--profile", "cpu", "--format", "csv", *VERSION)
    rows = list(csv.DictReader(io.StringIO(output)))
    assert (status, [row["block_size"] for row in rows][:2]) == (0, ["784", "800"])
    status, output = run(TINY, "--profile", "cpu", "--format", "markdown", *VERSION)
    assert "| 832 |" in output.replace("  ", " ")


def test_explain_names_every_source_and_what_moved_the_page() -> None:
    status, output = run(TINY, "--profile", "cpu", "--explain", "--kv-cache-dtype", "fp8", *VERSION)
    assert status == 0
    assert "vllm-0.32 platforms/interface.py Platform._align_hybrid_block_size" in output
    assert "kv_cache_dtype fp8: without it the page would be 832" in output
    assert "the padding tells them apart" in output
    answer = record("--profile", "cpu", "--explain")
    assert all(step["source"] for step in answer["steps"])


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        (1024, "costs 48.00 KiB more per page and layer (23.08 %)"),
        (700, "the state needs 783 tokens"),
        (800, "needs multiples of 64"),
        (832, "832 is the page"),
    ],
)
def test_why_not(tokens: int, reason: str) -> None:
    status, output = run(TINY, "--profile", "gfx936", "--why-not", str(tokens), *VERSION)
    assert status == 0
    assert reason in output


def test_matrix() -> None:
    axes = "tp=1 kv=auto,fp8 align=16,64 prefix-caching=off,on"
    status, output = run(TINY, "--matrix", axes, "--format", "csv", *VERSION)
    rows = list(csv.DictReader(io.StringIO(output)))
    assert status == 0
    pages = {(row["kv"], row["align"]): row["block_size"] for row in rows}
    assert pages["auto", "16"] == "784"
    assert pages["fp8", "64"] == "1600"
    assert len(rows) == 8


def test_matrix_keeps_refusals_as_rows() -> None:
    status, output = run(TINY, "--matrix", "tp=1,5", "--format", "json", *VERSION)
    rows = json.loads(output)
    assert status == 0
    assert rows[0]["block_size"] == 784
    assert "must be divisible" in rows[1]["refusal"]


def test_observed_finds_draft_tokens() -> None:
    status, output = run(TINY, "--observed", "800", "--padding", "1.52", *VERSION)
    assert (status, "draft tokens 1 " in output) == (0, True)


def test_observed_finds_another_model_size() -> None:
    status, output = run(TINY, "--observed", "544", "--padding", "2.64", *VERSION)
    assert status == 0
    assert "Qwen3.5-0.8B/2B" in output.splitlines()[3]


def test_observed_with_its_padding_is_worth_a_third_change() -> None:
    """A bf16 state, seven draft tokens, and int8 keys and values."""
    status, output = run(TINY, "--observed", "832", "--padding", "1.84", *VERSION)
    assert status == 0
    for change in ("draft tokens 7", "int8_per_token_head", "--mamba-ssm-cache-dtype bfloat16"):
        assert change in output


def test_observed_without_an_explanation_answers_no() -> None:
    status, output = run(TINY, "--observed", "785", *VERSION)
    assert (status, "prints a page of 785" in output) == (1, True)


def test_lints_speak_before_the_launch() -> None:
    flags = ("--max-num-batched-tokens", "1000", "--max-num-seqs", "200")
    own = ("--profile", "gfx936", "--prompt-tokens", "500")
    status, output = run(TINY, *own, "--enable-prefix-caching", *flags, *VERSION)
    assert status == 0
    assert "[prefill-starves]" in output
    assert "[prefix-cannot-hit]" in output


def test_batch_reads_cases_and_keeps_going_after_an_error(tmp_path: Path) -> None:
    cases = [
        {"id": "a", "model": TINY, "version": "0.32.0", "knobs": {"backends": ["STUB_M64"]}},
        {"id": "b", "model": TINY, "knobs": {"tp": 5}},
        {"id": "c", "model": str(tmp_path / "none"), "knobs": {}},
        {"id": "d", "model": TINY, "knobs": {"colour": "red"}},
    ]
    path = tmp_path / "cases.jsonl"
    path.write_text("\n".join(map(json.dumps, cases)) + "\n\n", encoding="utf-8")
    status, output = run("--batch", str(path), *VERSION)
    answers = [json.loads(line) for line in output.splitlines()]
    assert status == 0
    assert answers[0]["block_size"] == 832
    assert answers[0]["mamba_page_size_padded"] == 832 * 256
    assert answers[1]["error"]["class"] == "ValidationError"
    assert answers[2]["error"]["class"] == "InputError"
    assert "unknown knob 'colour'" in answers[3]["error"]["message"]


def test_batch_from_standard_input() -> None:
    case = json.dumps({"id": 1, "model": TINY, "knobs": {"alignment": 128}})
    status, output = run("--batch", "-", stdin=case)
    assert (status, json.loads(output)["block_size"]) == (0, 896)


def test_batch_answers_a_broken_line_and_goes_on(tmp_path: Path) -> None:
    good = {"id": "good", "model": TINY, "knobs": {"backends": "STUB_M64"}}
    broken = [
        b"{", b"null", b"[]", b"\xff", b"[" * 100_000, b"{}", b'{"id": NaN, "model": "x"}',
        b'{"id": 1e999}', b'{"id": 7, "model": ""}', b'{"id": 7, "knobs": [1]}',
        json.dumps(good | {"knobs": {"alignment": 2**31 + 1}}).encode(),
        json.dumps(good | {"knobs": {"tp": 0}}).encode(),
    ]  # fmt: skip
    path = tmp_path / "cases.jsonl"
    path.write_bytes(b"\n".join([*broken, json.dumps(good).encode()]))
    status, output = run("--batch", str(path), *VERSION)
    answers = [json.loads(line) for line in output.splitlines()]
    assert status == 0
    assert [answer.get("line") for answer in answers] == [*range(1, len(broken) + 1), None]
    assert {answer["error"]["class"] for answer in answers[:-1]} == {"InputError"}
    assert answers[-1]["block_size"] == 832
    assert "2147483648" in answers[-3]["error"]["message"]


def test_a_plain_model_says_that_nothing_needs_deriving(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "torch_dtype": "bfloat16",
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 32,
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    status, output = run(str(tmp_path), *VERSION)
    assert (status, "Not hybrid: nothing to derive, the block size is 16." in output) == (0, True)


def test_ascend_has_one_page_and_warns_of_a_larger_one() -> None:
    status, output = run(TINY, "--profile", "ascend-910b", "--block-size", "4096")
    assert status == 0
    assert "[ascend-equality]" in output
    _, output = run(TINY, "--profile", "ascend-910b", "--format", "json")
    assert [option["block_size"] for option in json.loads(output)["options"]] == [1536]


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        ((), 2, "the model is missing"),
        (("/no/such/dir",), 3, "no such file or directory"),
        ((TINY, "--profile", "gfx963"), 3, "did you mean gfx936"),
        ((TINY, "--vllm-version", "latest"), 3, "version 'latest'"),
        ((TINY, "--vllm-version", "0.8.0"), 4, "no page rule"),
        ((TINY, "--tensor-parallel-size", "many"), 2, "expected an integer"),
        ((TINY, "--tensor-parallel-size", "5"), 4, "must be divisible by tensor parallel size"),
        ((TINY, "--kv-cache-dtype", "fp9"), 3, "--kv-cache-dtype fp9"),
        ((TINY, "--engine", "sglang"), 2, "--engine sglang"),
        ((TINY, "--kv-cache-memory", "lots"), 2, "expected a size"),
        ((TINY, "--device-memory", "64GiB"), 2, "needs --gpu-memory-utilization"),
        ((TINY, "--matrix", "tp=one"), 2, "expected an integer"),
        ((TINY, "--matrix", "colour=red"), 2, "axes: tp"),
        ((TINY, "--matrix", "tp=" + ",".join(["1"] * 100_001)), 2, "combinations"),
        (("--batch", "/no/such/file"), 3, "cannot be read"),
        ((TINY, "--alignment", "0"), 2, ""),
        ((TINY, "--batch", "-"), 2, "--batch and"),
        ((TINY, "--padding", "1"), 2, "--padding needs --observed"),
        ((TINY, "--observed", "800", "--padding", "nan"), 2, "--padding nan"),
        ((TINY, "--observed", "800", "--padding", "-1"), 2, "--padding -1"),
        ((TINY, "--observed", "800", "--matrix", "tp=1"), 2, "do not go together"),
        ((TINY, "--explain", "--matrix", "tp=1"), 2, "do not go together"),
        (("--explain", "--batch", "-"), 2, "do not go together"),
        (("--batch", "-", "--profile", "cpu"), 2, "leave out --profile"),
        ((TINY, "--check-with-vllm", "--matrix", "tp=1"), 2, "do not go together"),
        ((TINY, "--matrix", "tp=1", "--why-not", "9"), 2, "leave out --why-not"),
        ((TINY, "--observed", "800", "--prompt-tokens", "9"), 2, "leave out --prompt-tokens"),
        ((TINY, "--check-python", "python3", "--explain"), 2, "do not go together"),
        ((TINY, "--check-python", "python3", "--why-not", "9"), 2, "leave out --why-not"),
        ((TINY, "--matrix", ""), 2, "names no axis"),
        ((TINY, "--request-tokens", "9"), 2, "--request-tokens needs a capacity"),
        ((TINY, "--weight-bytes", "9"), 2, "--weight-bytes needs --gpu-memory-utilization"),
        ((TINY, "--kv-cache-memory", "9", "--weight-bytes", "9"), 2, "do not go together"),
        ((TINY, "--alignment", str(2**31 + 1)), 2, "2147483648"),
        (("--batch", "-", "-tp", "2"), 2, "--batch and"),
        ((TINY, "other"), 2, "'other' is one argument too many"),
        (("vllm", "serve", "--port", "8000"), 2, "'8000' was read as a value of --port"),
        (("",), 2, "no model"),
        (("x" * 5000,), 2, "no model"),
        (("/dev/null",), 3, "/dev/null: not a regular file"),
        (("~nobody-of-that-name/x",), 3, "cannot be a path"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], status: int, text: str) -> None:
    got, output = run(*arguments)
    assert got == status
    assert text in output
    assert "Traceback" not in output


def test_the_installed_command_prints_one_line_for_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["X"]}', encoding="utf-8")
    command = [sys.executable, "-m", "hwtune", "derive-page", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 3
    assert result.stderr.startswith("hwtune: error: ")
    assert result.stderr.count("\n") == 1
    assert "architecture 'X' is not known" in result.stderr
