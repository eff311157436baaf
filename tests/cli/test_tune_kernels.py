"""``hwtune tune-kernels``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hwtune_profiles import __path__ as packaged
from typer.testing import CliRunner

from hwtune.cli import build_app
from hwtune.domain.errors import HwtuneError, UsageError
from hwtune.domain.kernel import tuning_for
from hwtune.io.profiles import load_profile
from hwtune.io.tuning_fragment import Fragment, fragment_text

GFX942 = Path(next(iter(packaged))) / "gfx942.toml"
COMMAND = "tune-kernels"


def run(*arguments: str) -> Any:
    return CliRunner().invoke(build_app([COMMAND, *arguments]), [COMMAND, *arguments])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--target", "sm_90", "--kernel", "prefill.cpu"), "nothing to tune"),
        (("--target", "sm_90", "--shape", "24"), "--shape 24: expected"),
        (("--target", "sm_90", "--limit", "0"), "--limit 0: must be from 1"),
        (("--target", "sm_90", "--processes", "0"), "--processes 0: must be from 1"),
        (("--processes", "3"), "--processes has no effect without --target"),
        (("--target", "sm_90", "--only-for", "page"), "--output writes, which is not given"),
    ],
    ids=str,
)
def test_bad_questions_get_one_line(arguments: tuple[str, ...], problem: str) -> None:
    error = run(*arguments).exception
    assert isinstance(error, UsageError)
    assert problem in str(error)


def test_without_a_gpu_a_target_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hwtune.adapters.kernel_bench.run.device_here", lambda: ("cpu", "here"))
    assert "no GPU here" in str(run().exception)


@pytest.mark.parametrize(
    ("fragment", "size", "page", "warps"),
    [
        ({}, 128, 832, 1),
        ({"head_sizes": (64,)}, 64, 832, 1),
        ({"head_sizes": (64,)}, 128, 832, 8),
        ({"page_not_multiple_of": 32}, 128, 784, 1),
        ({"page_not_multiple_of": 32}, 128, 832, 8),
    ],
    ids=str,
)
def test_a_fragment_pasted_into_a_profile_is_in_force(
    tmp_path: Path, fragment: dict[str, Any], size: int, page: int, warps: int
) -> None:
    text = fragment_text(
        Fragment(
            tuning={"num_warps": 1},
            source='2026-11-30, on a "CPU"\nof two lines',
            command="hwtune tune-kernels",
            **fragment,
        )
    )
    original = GFX942.read_text().rpartition("[kernels.tuning]")
    head = original[0] if not fragment else "".join(original[:2]) + "\nnum_warps = 8\n\n"
    profile = tmp_path / "mine.toml"
    profile.write_text(head + text)
    kernel = load_profile(str(profile)).kernels[-1]
    assert tuning_for(kernel, size, page)["num_warps"] == warps
    for special in kernel.tuned:
        assert special.source == '2026-11-30, on a "CPU" of two lines'


@pytest.mark.parametrize(
    ("special", "problem"),
    [
        ("head_sizes = [64]", "'kernels[1].tuned[0].source' is missing"),
        ('source = " "', "'kernels[1].tuned[0].source' is empty"),
        ('source = "by sweep"\nhead_size = 64', "did you mean 'head_sizes'?"),
        ('source = "by sweep"\npage_not_multiple_of = 0', "must be at least 1, not 0"),
        (
            'source = "by sweep"\nhead_sizes = 64',
            "'kernels[1].tuned[0].head_sizes' has the wrong type",
        ),
    ],
)
def test_a_profile_with_bad_special_constants_is_refused(
    tmp_path: Path, special: str, problem: str
) -> None:
    profile = tmp_path / "mine.toml"
    text = GFX942.read_text().partition("[[kernels.tuned]]")[0].rpartition("\n\n")[0]
    kernels = text.count("[[kernels]]")
    tuning = "tuning = { num_warps = 1 }"
    profile.write_text(f"{text}\n\n[[kernels.tuned]]\n{special}\n{tuning}\n")
    with pytest.raises(HwtuneError) as caught:
        load_profile(str(profile))
    assert problem.replace("kernels[1]", f"kernels[{kernels - 1}]") in str(caught.value)


@pytest.mark.vllm
def test_a_sweep_compiles_prints_and_writes(tmp_path: Path) -> None:
    """No server and no device: two sets of constants are compiled for gfx942."""
    output = tmp_path / "found.toml"
    result = run(
        *("--target", "gfx942", "--page", "784", "--limit", "2", "--processes", "1"),
        *("--only-for", "page", "--output", str(output), "--format", "json"),
    )
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert len(rows) == 2
    assert rows[0]["score"] <= rows[1]["score"] < 1
    written = output.read_text()
    assert "page_not_multiple_of = 32" in written
    assert f"num_warps = {rows[0]['num_warps']}" in written
    assert "page 784" in written


@pytest.mark.vllm
@pytest.mark.parametrize(("shape", "page"), [("24/4/256", "784"), ("24/4/64", "832")])
def test_what_was_weak_with_one_tuning_for_all_is_not(shape: str, page: str) -> None:
    """Page 784 has small tiles, head size 64 few bytes for each lane. Compiled, not run."""
    asked = ["ab-bench", "kernels", "--static", "--target", "gfx942", "--format", "json"]
    asked += ["--shape", shape, "--page", page]
    result = CliRunner().invoke(build_app(asked), asked)
    rows = {row["kernel"]: row for row in json.loads(result.stdout)}
    assert rows["page_decode"]["work_ratio"] <= 0.5
    assert rows["tiled_prefill"]["work_ratio"] <= 0.3
    for name in ("page_decode", "tiled_prefill"):
        assert (rows[name]["spill_bytes"], rows[name]["narrow_loads"]) == (0, 0)


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--target", "sm_9"), "no target 'sm_9'"),
        (("--target", "sm_90", "--shape", "8/8/96"), "head size 96"),
    ],
    ids=str,
)
def test_what_cannot_be_compiled_is_refused(arguments: tuple[str, ...], problem: str) -> None:
    error = run(*arguments, "--limit", "1").exception
    assert isinstance(error, HwtuneError)
    assert error.exit_status == 3
    assert problem in str(error)
