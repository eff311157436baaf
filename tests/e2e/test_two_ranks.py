"""Tensor parallel 2 on real vLLM: the plan in every worker, hits and pages rank by rank."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.support import EVERY_SHAPE, FLAGS, MODEL, cli_environment, free_port, hwtune

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

HEADS = (
    *("num_attention_heads", "num_key_value_heads"),
    *("linear_num_key_heads", "linear_num_value_heads"),
)


@pytest.fixture(scope="module")
def twice_as_wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with twice the heads, so that each of two ranks holds what one rank did."""
    folder = tmp_path_factory.mktemp("two-ranks") / "model"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL / name, folder)
    config = json.loads((MODEL / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {n: 2 * config[n] for n in HEADS}))
    subprocess.run([sys.executable, MODEL / "make_weights.py", folder], check=True)
    return folder


def test_every_rank_runs_the_kernels_on_the_planned_page(
    twice_as_wide: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    # Two cores are one NUMA node, which vLLM would not share between two workers by itself.
    cores = sorted(os.sched_getaffinity(0))
    binding = f"{cores[0]}|{cores[-1]}"
    served = subprocess.run(
        [
            *(sys.executable, "-m", "hwtune", "serve", str(twice_as_wide), "--quiet"),
            *("--profile", str(EVERY_SHAPE), "--run-dir", str(run_dir), "--stop-when-verified"),
            *("--port", str(free_port()), "--tensor-parallel-size", "2"),
            *(*FLAGS, "--no-enable-prefix-caching"),
        ],
        env=cli_environment(VLLM_CPU_OMP_THREADS_BIND=binding),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert served.returncode == 0, served.stderr
    report = json.loads(
        hwtune("verify-markers", "--run-dir", str(run_dir), "--format", "json").stdout
    )
    seen = {check["name"]: check["seen"] for check in report["checks"]}
    assert seen["page"] == "832"
    assert seen["kernel:vendor_prefill"] == "2 calls (1 in Worker_TP0, 1 in Worker_TP1)"
    assert seen["kernel:page_decode"] == "6 calls (3 in Worker_TP0, 3 in Worker_TP1)"
