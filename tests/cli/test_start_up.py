"""Starting fast is a property of what gets imported, so that is what is tested."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {"rich", "pandas", "numpy", "scipy", "torch", "triton", "vllm", "huggingface_hub"}
HELP = [
    ("--help",),
    ("--version",),
    ("derive-page", "--help"),
    ("serve", "--help"),
    ("verify-markers", "--help"),
    ("ab-bench", "serving", "--help"),
    ("profiles", "list"),
    ("doctor", "--help"),
    ("derive-page", "examples/tiny-qwen3.5", "--profile", "cpu"),
]
CODE = """
import json, sys
sys.argv = ["hwtune", *json.loads(sys.argv[1])]
from hwtune.cli import main
try:
    main()
except SystemExit as end:
    status = end.code or 0
else:
    status = 0
json.dump([status, sorted({name.partition(".")[0] for name in sys.modules})], sys.stderr)
"""


@pytest.mark.parametrize("arguments", HELP, ids=" ".join)
def test_nothing_heavy_is_loaded(arguments: tuple[str, ...]) -> None:
    result = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(arguments)],
        capture_output=True,
        text=True,
        check=True,
    )
    status, loaded = json.loads(result.stderr)
    assert status == 0, result.stdout
    assert result.stdout
    assert not HEAVY & set(loaded)
