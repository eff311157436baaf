"""The plugin inside real vLLM's processes, without starting a server."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hwtune.domain.errors import InputError
from hwtune.io.plans import write_plan
from tests.unit.test_planning import plan

# vLLM configures its logging when an engine starts; here the test does.
LOAD = "import logging; logging.basicConfig(level=logging.INFO)\n"
LOAD += "from vllm.plugins import load_general_plugins; load_general_plugins()\n"


def run(code: str, plan_path: Path | None) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "HWTUNE_PLAN"}
    if plan_path is not None:
        environment["HWTUNE_PLAN"] = str(plan_path)
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )


def test_without_a_plan_it_imports_nothing_and_says_nothing() -> None:
    code = LOAD + "import sys; print([m for m in sys.modules if m.startswith('hwtune')])"
    result = run(code, None)
    loaded = result.stdout.splitlines()[-1]
    assert "hwtune.adapters.vllm.plugin" in loaded
    assert "hwtune.adapters.vllm.install" not in loaded
    assert "hwtune.domain" not in loaded
    assert "hwtune[" not in result.stdout + result.stderr


BACKEND = """
from vllm.v1.attention.backends.registry import AttentionBackendEnum
backend = AttentionBackendEnum[{name!r}].get_class()
sizes = [size for size in (16, 64, 784, 832) if backend.supports_block_size(size)]
print(backend.__name__, backend.get_name(), backend.get_supported_kernel_block_sizes(), sizes)
"""


def test_the_candidate_carries_the_alignment_on_the_cpu(tmp_path: Path) -> None:
    result = run(LOAD + LOAD + BACKEND.format(name="CPU_ATTN"), write_plan(plan(), tmp_path))
    last = result.stdout.splitlines()[-1]
    assert last == "HwtuneCPUAttentionBackend CPU_ATTN [MultipleOf(64)] [64, 832]"
    assert "hwtune[n] registered backend=CPU_ATTN" in result.stdout + result.stderr


def test_the_baseline_declares_what_vllm_declares(tmp_path: Path) -> None:
    path = write_plan(plan(arm="baseline"), tmp_path)
    last = run(LOAD + BACKEND.format(name="CPU_ATTN"), path).stdout.splitlines()[-1]
    assert last == "HwtuneCPUAttentionBackend CPU_ATTN [MultipleOf(32)] [64, 832]"


@pytest.mark.parametrize("profile", ["gfx936", "gfx942", "sm_90"])
def test_the_gpu_backend_fits_vllms_interface(tmp_path: Path, profile: str) -> None:
    """Registered and built here; it has not run on a GPU."""
    path = write_plan(plan(profile), tmp_path)
    code = (
        LOAD + BACKEND.format(name="CUSTOM") + "print(backend.get_builder_cls()._cudagraph_support)"
    )
    *_, described, graphs = run(code, path).stdout.splitlines()
    assert described == "HwtuneTritonAttentionBackend TRITON_ATTN [MultipleOf(64)] [64, 832]"
    assert graphs == "AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE"


OTHER_PLUGIN = """
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
register_backend(AttentionBackendEnum.CPU_ATTN, "other.plugin.Backend")
"""


def test_another_plugins_backend_is_not_displaced(tmp_path: Path) -> None:
    code = OTHER_PLUGIN + LOAD + "print(AttentionBackendEnum.CPU_ATTN.get_path())"
    result = run(code, write_plan(plan(), tmp_path))
    assert result.stdout.splitlines()[-1] == "other.plugin.Backend"
    reason = "refused reason=attention backend CPU_ATTN is already other.plugin.Backend"
    assert reason in result.stdout + result.stderr


def test_a_vllm_that_does_not_fit_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from hwtune.adapters.vllm import install
    from hwtune.adapters.vllm.targets import BACKEND_PATCHES, CPU, Target

    missing = Target(module="vllm.v1.attention.gone"), Target(module="vllm.v1.attention.moved")
    patch = dataclasses.replace(CPU, targets=(*CPU.targets, *missing))
    monkeypatch.setitem(BACKEND_PATCHES, "CPU_ATTN", patch)
    monkeypatch.setattr(install, "current_plan", plan)
    monkeypatch.setattr(install, "_register", lambda *_: pytest.fail("half applied"))
    with pytest.raises(InputError) as refusal:
        install.install()
    text = str(refusal.value)
    assert "does not fit the CPU_ATTN patch: vllm.v1.attention.gone is missing (and 1 more)" in text
    assert "\n" not in text
