"""The GPU backend's own path from vLLM's ``forward`` to the kernels, interpreted on CPU tensors."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hwtune.io.counters import read_counters
from hwtune.io.plans import write_plan
from hwtune.io.profiles import load_profile
from tests.unit.test_planning import plan

CHILD = Path(__file__).with_name("triton_forward_child.py")
SERVED = ["decode", "padded decode", "drafts", "prefill", "mixed", "window", "cap and sinks"]
LEFT = ["chunked", "prefix", "per sequence", "int8", "captured prefill"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[Any, int], str]:
    """What the calls gave, what was counted, what was printed."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed here; it belongs to the GPU environment")
    directory = tmp_path_factory.mktemp("run")
    made = plan("gfx942")
    made = dataclasses.replace(made, kernels=load_profile("gfx942").kernels)
    path = write_plan(made, directory)
    environment = os.environ | {"HWTUNE_PLAN": str(path)}
    done = subprocess.run(
        [sys.executable, str(CHILD)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    counted: dict[Any, int] = {}
    for count in read_counters(directory):
        key = (count.kernel, count.outcome, count.reason)
        counted[key] = counted.get(key, 0) + count.calls
    return json.loads(done.stdout.splitlines()[-1]), counted, done.stdout + done.stderr


@pytest.mark.parametrize("call", SERVED)
def test_the_kernels_serve_what_the_profile_says(run: Any, call: str) -> None:
    found = run[0][call]
    assert not found["generic"]
    assert found["padding_untouched"]
    assert found["error"] < 4e-3


@pytest.mark.parametrize("call", LEFT)
def test_anything_else_is_vllms(run: Any, call: str) -> None:
    assert run[0][call]["generic"]


def test_a_captured_decode_is_served_and_counted_as_captured(run: Any) -> None:
    found, counted, _ = run
    assert found["captured decode"]["error"] < 4e-3
    assert counted["page_decode", "captured", ""] == 1
    assert counted["tiled_prefill", "fallback", "graph capture"] == 1


def test_graphs_may_hold_single_token_decodes_only(run: Any) -> None:
    assert run[0]["graphs"] == "UNIFORM_SINGLE_TOKEN_DECODE"


def test_every_call_is_counted_with_its_reason(run: Any) -> None:
    counted = run[1]
    assert counted["page_decode", "hit", ""] == 4
    assert counted["tiled_prefill", "hit", ""] == 3
    assert counted["page_decode", "fallback", "chunked attention"] == 1
    assert counted["page_decode", "fallback", "multimodal prefix"] == 1
    assert counted["page_decode", "fallback", "not causal"] == 1
    assert counted["page_decode", "fallback", "int8_per_token_head cache"] == 1
    assert not [key for key in counted if key[1] == "fault"]


def test_every_layer_and_first_hit_is_announced(run: Any) -> None:
    printed = run[2]
    assert "layer bound name=plain block_size=64 heads=6/1 head_size=64 dtype=float16" in printed
    assert "first hit kernel=page_decode query=1 context=130 block_size=64" in printed
