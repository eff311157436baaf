"""What a plan for vllm-ascend sets, says and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hwtune.domain.errors import InfeasibleError, UsageError
from hwtune.domain.launch import LaunchPlan, VllmInstall
from hwtune.domain.planning import ServerRequest, plan_launch
from hwtune.domain.planning_ascend import graph_mode
from hwtune.io.model_config import load_model
from hwtune.io.profiles import load_profile

TINY = Path(__file__).parents[2] / "examples" / "tiny-qwen3.5"
INSTALLED = ("lora_hf_hub_resolver", "ascend_kv_connector", "ascend_model_loader", "hwtune")


def plan(
    *flags: str,
    model: Path = TINY,
    environ: dict[str, str] | None = None,
    ascend: str | None = "0.18.0",
    counting: bool = False,
    arm: Any = "candidate",
    profile: str = "ascend-910b",
) -> LaunchPlan:
    request = ServerRequest(
        model=str(model),
        shape=load_model(str(model)),
        profile=load_profile(profile),
        profile_reference=profile,
        arm=arm,
        flags=flags,
        host="127.0.0.1",
        port=8000,
        environ=environ or {},
        count_attn_state=counting,
    )
    install = VllmInstall(
        version="0.18.0",
        ascend_version=ascend,
        command=("vllm", "serve"),
        model_as_flag=False,
        location="/vllm",
        plugins=INSTALLED,
    )
    return plan_launch(request, install, run_id="r", nonce="n", available=lambda name: False)


def qwen35_35b(folder: Path) -> Path:
    """The attention and state of Qwen3.5-35B-A3B: two KV heads, 32 value heads, FP32 state."""
    config = json.loads((TINY / "config.json").read_text("utf-8"))
    text = config.get("text_config", config)
    text["num_key_value_heads"] = 2
    text["num_attention_heads"] = 16
    text["head_dim"] = 256
    text["linear_num_value_heads"] = 32
    text["linear_num_key_heads"] = 16
    text["linear_key_head_dim"] = text["linear_value_head_dim"] = 128
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


def test_the_page_is_the_one_at_which_k_equals_the_state() -> None:
    expected = plan("--enable-prefix-caching").expect
    assert expected.block_size == 1536
    assert (expected.mamba_cache_mode, expected.kernels) == ("align", ())
    assert expected.padding_pct == pytest.approx(0.97, abs=0.01)


@pytest.mark.parametrize("block", ["2048", "3072"])
def test_a_larger_block_is_refused_because_it_computes_wrong_output(block: str) -> None:
    with pytest.raises(InfeasibleError, match="above the 1536"):
        plan("--block-size", block)


def test_a_smaller_block_is_raised_by_vllm_ascend_itself() -> None:
    assert plan("--block-size", "128").expect.block_size == 1536


def test_a_page_as_large_as_the_default_budget_starves_prefill(tmp_path: Path) -> None:
    model = qwen35_35b(tmp_path)
    starved = plan("--enable-prefix-caching", model=model)
    assert starved.expect.block_size == 2048
    (note,) = [note for note in starved.notes if "prefill waits" in note]
    assert "--max-num-batched-tokens 2048 only while fewer than 1 decode tokens" in note
    assert note.endswith("(vLLM's default here)")
    cured = plan("--enable-prefix-caching", "--max-num-batched-tokens", "4096", model=model)
    assert not [note for note in cured.notes if "prefill waits" in note]
    without = plan("--no-enable-prefix-caching", model=model)
    assert not [note for note in without.notes if "prefill waits" in note]


def test_the_plugins_of_the_npu_and_hwtunes_are_named() -> None:
    assert plan().environment["VLLM_PLUGINS"] == ",".join((*INSTALLED, "ascend"))
    only = plan(environ={"VLLM_PLUGINS": "mine"}).environment["VLLM_PLUGINS"]
    assert only == "mine,ascend,ascend_kv_connector,ascend_model_loader,hwtune"


def test_the_allocator_is_stated_unless_the_user_or_sleep_mode_decides() -> None:
    assert plan().environment["PYTORCH_NPU_ALLOC_CONF"] == "expandable_segments:True"
    own = plan(environ={"PYTORCH_NPU_ALLOC_CONF": "max_split_size_mb:256"})
    assert "PYTORCH_NPU_ALLOC_CONF" not in own.environment
    assert "PYTORCH_NPU_ALLOC_CONF" not in plan("--enable-sleep-mode").environment


def test_both_arms_get_the_same_environment() -> None:
    assert plan(arm="baseline").environment == plan().environment


def test_the_plugin_takes_part_only_to_count() -> None:
    assert plan().environment["HWTUNE_PLAN"] == ""
    counting = plan(counting=True)
    assert "HWTUNE_PLAN" not in counting.environment
    assert counting.count_attn_state
    with pytest.raises(UsageError, match="count-attn-state"):
        plan(counting=True, profile="cpu")


@pytest.mark.parametrize(
    ("flags", "version", "mode"),
    [
        ((), "0.18.0", "PIECEWISE"),
        ((), "0.23.0.post1", "FULL_AND_PIECEWISE"),
        ((), None, "FULL_AND_PIECEWISE"),
        (("--enforce-eager",), "0.23.0", "NONE"),
        (("--compilation-config", '{"cudagraph_mode": "full_decode_only"}'), "0.18.0",
         "FULL_DECODE_ONLY"),
        (('-O={"cudagraph_mode": "PIECEWISE"}',), "0.23.0", "PIECEWISE"),
        (("-cc.cudagraph_mode=NONE",), "0.23.0", "NONE"),
        (("--compilation_config.cudagraph_mode", "FULL"), "0.23.0", "FULL"),
        (("--compilation-config", '{"level": 3}'), "0.18.0", "PIECEWISE"),
        (("-O3",), "0.18.0", "PIECEWISE"),
    ],
)  # fmt: skip
def test_the_graph_mode_it_arrives_at(
    flags: tuple[str, ...], version: str | None, mode: str
) -> None:
    assert graph_mode(flags, version) == mode


def test_what_a_graph_hides_from_the_counters_is_said() -> None:
    full = plan("-cc.cudagraph_mode=FULL_DECODE_ONLY", counting=True)
    assert any("counted once, when they are recorded" in note for note in full.notes)
    eager = plan("--enforce-eager", counting=True)
    assert any(note == "graph mode NONE: eager" for note in eager.notes)


def test_flags_that_vllm_ascend_would_refuse() -> None:
    blocking = {"ASCEND_LAUNCH_BLOCKING": "1"}
    with pytest.raises(UsageError, match="--enforce-eager"):
        plan(environ=blocking)
    assert plan("--enforce-eager", environ=blocking).expect.block_size == 1536
    with pytest.raises(UsageError, match="not JSON"):
        plan("--compilation-config", "{cudagraph_mode: FULL}")


def test_an_inherited_build_setting_is_mentioned() -> None:
    notes = plan(environ={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}).notes
    assert any("TORCH_DEVICE_BACKEND_AUTOLOAD=0" in note for note in notes)


def test_a_missing_vllm_ascend_is_said() -> None:
    assert any("not installed here" in note for note in plan(ascend=None).notes)
