"""A profile of each arm, recorded by real vLLM, ends in buckets that can be compared."""

from __future__ import annotations

import json
import urllib.request

import pytest

from tests.e2e.support import Served, hwtune, prompt

pytestmark = pytest.mark.vllm

PROMPT_TOKENS, OUTPUT_TOKENS = 1500, 6


def _post(served: Served, path: str) -> None:
    request = urllib.request.Request(f"{served.url}{path}", data=b"", method="POST")
    with urllib.request.urlopen(request, timeout=120):
        pass


def _profiled(served: Served) -> str:
    _post(served, "/start_profile")
    served.complete(prompt(PROMPT_TOKENS), OUTPUT_TOKENS)
    _post(served, "/stop_profile")
    return str(served.run_dir / "profile")


def test_both_arms_profiles_are_of_the_same_work(baseline: Served, candidate: Served) -> None:
    before, after = _profiled(baseline), _profiled(candidate)
    result = hwtune("ab-bench", "buckets", before, after, "--by-phase", "--format", "json")
    assert result.returncode == 0, result.stderr
    data = json.loads(result.stdout)
    for arm in data["arms"]:
        assert (arm["clock"], arm["ranks"]) == ("cpu", 1)
        assert arm["work"]["prefill_tokens"] == PROMPT_TOKENS
        assert arm["work"]["decode_tokens"] == OUTPUT_TOKENS - 1
    times = {(row["phase"], row["bucket"]): row for row in data["rows"]}
    for bucket in ("attention", "recurrent", "GEMM", "KV cache write", "sampling"):
        assert times["all", bucket]["baseline_ms"] > 0, bucket
        assert times["all", bucket]["ratio"] > 0, bucket
    assert times["prefill", "attention"]["baseline_calls"] >= 1
    assert times["decode", "attention"]["baseline_calls"] == OUTPUT_TOKENS - 1
    # Our kernels' matrix products are attention's, not GEMM's.
    gemm = times["all", "GEMM"]
    assert gemm["candidate_calls"] == gemm["baseline_calls"]
