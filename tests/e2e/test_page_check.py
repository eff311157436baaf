"""The derived page against the installed vLLM's own code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TINY = Path(__file__).parents[2] / "examples" / "tiny-qwen3.5"


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("flags", "pages"),
    [
        ((), ("896", "832")),
        (("--kv-cache-dtype", "fp8", "--no-enable-prefix-caching"), ("1664", "1600")),
    ],
)
def test_vllm_resolves_the_derived_page(flags: tuple[str, ...], pages: tuple[str, str]) -> None:
    own = ("--profile", "cpu", "--check-with-vllm", "--format", "json", "--max-model-len", "8192")
    command = [sys.executable, "-m", "hwtune", "derive-page", str(TINY), *own, *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    rows = {row["field"]: row for row in json.loads(done.stdout)}
    assert (rows["block_size at 32"]["resolved"], rows["block_size at 64"]["resolved"]) == pages
    assert all(row["agrees"] for row in rows.values())
    assert done.returncode == 0
