"""``simulate --against`` over a run directory as ab-bench leaves it, counters included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hwtune.cli import build_app
from hwtune.domain.bench import ARMS, RequestRecord
from hwtune.domain.errors import HwtuneError
from hwtune.domain.kernel import OBSERVED_ONLY
from hwtune.domain.launch import Arm, Expectation, LaunchPlan
from hwtune.domain.workload import Design, Tier
from hwtune.io.counters import CounterFile
from hwtune.io.plans import write_plan
from hwtune.io.profiles import load_profile
from hwtune.io.records import RequestJournal, write_design

TINY = Path(__file__).parents[2] / "examples" / "tiny-qwen3.5"
EVERY_SHAPE = TINY / "every-shape.toml"
FLAGS = ("--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "8192")
NO_CACHE = "--no-enable-prefix-caching"
NONCE = "0123456789ab"

# Prompt tokens and answers; chunks of 2048 are vLLM's default on a CPU.
SENT = ((300, 4), (2500, 3), (4200, 5))
CHUNKS, DECODES = 1 + 2 + 3, 3 + 2 + 4


def plan(arm: Arm) -> LaunchPlan:
    page = 832 if arm == "candidate" else 896
    return LaunchPlan(
        run_id="run",
        nonce=NONCE,
        arm=arm,
        model=str(TINY),
        served_model_name="tiny",
        profile=str(EVERY_SHAPE),
        device="cpu",
        vllm_version="0.32.0",
        backend_to_extend="CPU_ATTN",
        alignment_tokens=64 if arm == "candidate" else None,
        kernels=load_profile(str(EVERY_SHAPE)).kernels,
        argv=("python", "-m", "vllm", "--model", str(TINY), *FLAGS, NO_CACHE),
        expect=Expectation(
            block_size=page,
            padding_pct=None,
            enable_prefix_caching=False,
            mamba_cache_mode="none",
            backend="CPU_ATTN",
            kernels=(),
        ),
    )


def server(directory: Path, arm: Arm, *, chunks: int = CHUNKS, decodes: int = DECODES) -> None:
    """What a server leaves that counted so many calls."""
    directory.mkdir(parents=True)
    write_plan(plan(arm), directory)
    counters = CounterFile(directory, NONCE)

    def count(kernel: str, outcome: str, reason: str, calls: int) -> None:
        counters.view[counters.slot(kernel, outcome, reason)] += calls

    took = ("hit", "") if arm == "candidate" else ("fallback", OBSERVED_ONLY)
    count("vendor_prefill", *took, chunks)
    count("vendor_prefill", "fallback", "query shorter than 2", decodes)
    count("page_decode", *took, decodes)
    count("page_decode", "fallback", "query longer than 1", chunks)


def run_dir(tmp_path: Path, concurrency: int = 1, **counted: int) -> Path:
    """A finished run of ab-bench."""
    directory = tmp_path / "ab"
    tier = Tier(name="256-4608", least_tokens=256, most_tokens=4608)
    design = Design(
        model=str(TINY),
        profile=str(EVERY_SHAPE),
        flags=(*FLAGS, NO_CACHE),
        mode="concurrent servers",
        vocab_size=1024,
        tiers=(tier,),
        pairs=1,
        prompts_per_tier=3,
        output_tokens=8,
        concurrency=concurrency,
    )
    write_design(design, directory)
    journal = RequestJournal(directory)
    for arm in ARMS:
        for at, (prompt, output) in enumerate(SENT):
            journal.append(record(arm, at, prompt, output))
        server(directory / "arms" / arm, arm, **counted)
    journal.close()
    return directory


def record(arm: Arm, at: int, prompt: int, output: int) -> RequestRecord:
    return RequestRecord(
        arm=arm,
        phase="measured",
        tier="256-4608",
        pair=0,
        prompt=at,
        prompt_id=f"p{at}",
        started_unix_s=1000.0 + at,
        ended_unix_s=1000.5 + at,
        ttft_s=0.1,
        e2el_s=0.4,
        chunk_times_s=(0.1,),
        prompt_tokens=prompt,
        output_tokens=output,
    )


def simulate(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(build_app(["simulate"]), ["simulate", *arguments])
    if isinstance(result.exception, HwtuneError):
        return result.exception.exit_status, str(result.exception)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def comparisons(*arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    status, text = simulate(*arguments, "--format", "json")
    return status, {found["arm"]: found for found in json.loads(text)["comparisons"]}


def test_a_sequential_run_is_predicted_call_by_call(tmp_path: Path) -> None:
    status, found = comparisons("--against", str(run_dir(tmp_path)))
    assert status == 0
    assert {arm: result["agreement"] for arm, result in found.items()} == {
        "baseline": "exact",
        "candidate": "exact",
    }
    assert found["candidate"]["calls_per_step"] == 1


def test_a_missing_chunk_is_noticed(tmp_path: Path) -> None:
    status, found = comparisons("--against", str(run_dir(tmp_path, chunks=CHUNKS - 1)))
    assert status == 1
    assert found["candidate"]["agreement"] == "differs"
    hits = next(row for row in found["candidate"]["rows"] if row["outcome"] == "hit")
    assert (hits["predicted"], hits["counted"]) == (CHUNKS, CHUNKS - 1)


def test_several_in_flight_may_differ_and_say_why(tmp_path: Path) -> None:
    status, text = simulate("--against", str(run_dir(tmp_path, concurrency=3)))
    assert status == 0
    assert "as they may at this concurrency" in text
    assert "why: concurrency 3" in text


def test_a_served_run_is_told_what_was_sent(tmp_path: Path) -> None:
    directory = tmp_path / "served"
    server(directory, "candidate")
    sent = [word for prompt, output in SENT for word in ("--request", f"{prompt}:{output}")]
    status, found = comparisons("--against", str(directory), *sent)
    assert (status, found["candidate"]["agreement"]) == (0, "exact")
    status, text = simulate("--against", str(directory))
    assert status == 2
    assert "--request" in text


def test_counters_that_are_gone_are_said(tmp_path: Path) -> None:
    directory = run_dir(tmp_path)
    for arm in ARMS:
        for path in (directory / "arms" / arm / "counters").iterdir():
            path.unlink()
        (directory / "arms" / arm / "counters").rmdir()
    status, text = simulate("--against", str(directory))
    assert status == 3
    assert "no server of this run left a plan and counters" in text


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_no_run_directory_is_one_clear_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    status, text = simulate("--against", str(tmp_path / name))
    assert status == 3
    assert "no run of ab-bench or serve" in text
