"""Both arms' log-probabilities on real vLLM: the example's kernels compute the same model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.support import Served, hwtune

pytestmark = pytest.mark.vllm


def test_the_examples_kernels_agree_with_vllms_attention(
    baseline: Served, candidate: Served, tmp_path: Path
) -> None:
    result = hwtune(
        *("ab-bench", "accuracy", "--run-dir", str(tmp_path), "--format", "json"),
        *("--baseline-url", baseline.url, "--candidate-url", candidate.url),
        *("--baseline-run", str(baseline.run_dir), "--candidate-run", str(candidate.run_dir)),
        *("--prompts", "2", "--context", "256", "--items", "2"),
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    prefill, decode = report["agreements"]
    assert prefill["positions"] > 300
    assert decode["positions"] == 2 * 64
    # Other kernels, other rounding: not the same bits, and far from another context.
    assert 0 < prefill["max_abs_delta"] < 0.1
    assert prefill["largest_error"] < 0.25
    states = {gate["name"]: gate["state"] for gate in report["gates"]}
    assert states["markers of the candidate"] == "passed"
