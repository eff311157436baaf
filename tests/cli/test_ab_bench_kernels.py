"""``hwtune ab-bench kernels --static``."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from hwtune.cli import build_app
from hwtune.domain.errors import HwtuneError, MissingDependencyError, UsageError

STATIC = ("ab-bench", "kernels", "--static")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(build_app(list(arguments)), arguments)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((*STATIC, "--shape", "24/4"), "--shape 24/4: expected"),
        ((*STATIC, "--shape", "24/5/256"), "24 query heads do not divide among 5"),
        ((*STATIC, "--shape", "0/4/256"), "0 query heads do not divide among 4"),
        ((*STATIC, "--shape", "24/0/256"), "24 query heads do not divide among 0"),
        ((*STATIC, "--page", "0"), "--page 0: must be from 1"),
    ],
    ids=str,
)
def test_bad_questions_get_one_line(arguments: tuple[str, ...], problem: str) -> None:
    result = run(*arguments)
    assert isinstance(result.exception, UsageError)
    assert problem in str(result.exception)


@pytest.mark.parametrize("package", ["torch", "triton", "vllm"])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setattr(
        "hwtune.adapters.packages.find_spec", lambda name: None if name == package else name
    )
    error = run(*STATIC).exception
    assert isinstance(error, MissingDependencyError)
    assert f"needs {package}" in str(error)
    assert error.exit_status == 5


@pytest.mark.vllm
@pytest.mark.parametrize(("target", "most_of_generic"), [("sm_90", 0.6), ("gfx942", 0.6)])
def test_ours_is_never_worse_than_vllms(target: str, most_of_generic: float) -> None:
    """No server and no device: both kernels are compiled here and counted."""
    result = run(*STATIC, "--target", target, "--format", "json")
    assert result.exit_code == 0, result.output
    rows = {(row["operation"], row["kernel"]): row for row in json.loads(result.output)}
    generic = rows["decode", "vLLM generic, 16 segments"]
    fast, exact = rows["decode", "page_decode"], rows["decode", "page_decode exact"]
    assert fast["per_16_tokens"] <= most_of_generic * generic["per_16_tokens"]
    assert fast["work_ratio"] <= most_of_generic
    assert exact["work_ratio"] < 1
    assert generic["divisions"] > 0, "the baseline's division must be seen, or ours proves nothing"
    prefill = rows["prefill", "tiled_prefill"]
    assert prefill["work_ratio"] <= 0.3
    for row in (fast, exact, prefill):
        assert (row["spill_bytes"], row["divisions"], row["narrow_loads"]) == (0, 0, 0)
        assert row["wide_loads"] > 0


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--target", "sm_9"), "no target 'sm_9'"),
        (("--target", "sm_90", "--page", "100"), "page 100 is not a multiple of 16"),
        (("--target", "sm_90", "--shape", "8/8/96"), "head size 96"),
    ],
    ids=str,
)
def test_what_cannot_be_compiled_is_refused(arguments: tuple[str, ...], problem: str) -> None:
    error = run(*STATIC, *arguments).exception
    assert isinstance(error, HwtuneError)
    assert error.exit_status == 3
    assert problem in str(error)
