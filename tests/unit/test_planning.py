"""What a launch plan adds, expects and refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hwtune.domain.errors import InfeasibleError, InputError, UsageError
from hwtune.domain.launch import LaunchPlan, VllmInstall
from hwtune.domain.planning import ServerRequest, flag_value, plan_launch, version_tuple
from hwtune.io.model_config import load_model
from hwtune.io.plans import read_plan, write_plan
from hwtune.io.profiles import load_profile

MODEL = Path(__file__).parents[2] / "examples" / "tiny-qwen3.5"
EVERY_SHAPE = MODEL / "every-shape.toml"
PREFIX_OFF = ("--no-enable-prefix-caching", "--max-model-len", "8192")


def plan(
    profile: str = str(EVERY_SHAPE),
    arm: Any = "candidate",
    flags: tuple[str, ...] = PREFIX_OFF,
    version: str = "0.32.0",
    environ: dict[str, str] | None = None,
    checked_rate: float = 0.0,
    ascend_version: str | None = None,
    attention: dict[str, Any] | None = None,
    available: Callable[[str], bool] = lambda name: name.endswith((".cpu", ".vendor")),
) -> LaunchPlan:
    shape = load_model(str(MODEL))
    shape = replace(shape, attention=replace(shape.attention, **(attention or {})))
    request = ServerRequest(
        model=str(MODEL),
        shape=shape,
        profile=load_profile(profile),
        profile_reference=profile,
        arm=arm,
        flags=flags,
        host="127.0.0.1",
        port=8000,
        environ=environ or {},
        checked_rate=checked_rate,
    )
    install = VllmInstall(
        version=version,
        ascend_version=ascend_version,
        command=("vllm", "serve"),
        model_as_flag=False,
        location="/vllm",
    )
    return plan_launch(
        request,
        install,
        run_id="r",
        nonce="n",
        available=available,
    )


def test_the_baseline_adds_nothing_and_expects_vllms_own_page() -> None:
    baseline = plan(arm="baseline")
    assert baseline.added == ()
    assert baseline.alignment_tokens is None
    assert baseline.expect.block_size == 896
    assert baseline.expect.kernels == ()
    own = ("--host", "127.0.0.1", "--port", "8000")
    assert baseline.argv == ("vllm", "serve", str(MODEL), *PREFIX_OFF, *own)


def test_the_candidate_on_the_cpu_states_its_granularity() -> None:
    candidate = plan()
    assert [(flag.name, flag.value) for flag in candidate.added] == [("--block-size", "64")]
    assert candidate.expect.block_size == 832
    assert candidate.expect.padding_pct == pytest.approx(6.258, abs=1e-3)
    assert candidate.expect.kernels == ("vendor_prefill", "page_decode")


def test_a_kernel_that_can_never_take_the_layer_is_a_note() -> None:
    candidate = plan("cpu")
    assert candidate.expect.kernels == ()
    assert "kernel vendor_prefill will not run: head size 64, not 256" in candidate.notes


@pytest.mark.parametrize(
    ("longest", "kernels"),
    [("8196", ("prefill_head_64",)), ("8195", ()), ("8192", ()), ("4096", ())],
)
def test_a_kernel_is_expected_where_a_prompt_for_it_leaves_room_for_an_answer(
    longest: str, kernels: tuple[str, ...]
) -> None:
    candidate = plan("cpu", flags=(*PREFIX_OFF, "--max-model-len", longest))
    assert candidate.expect.kernels == kernels


def test_a_block_size_of_the_user_is_kept() -> None:
    candidate = plan(flags=("--block-size", "128", *PREFIX_OFF))
    assert candidate.added == ()
    assert candidate.expect.block_size == 896


@pytest.mark.parametrize(("asked", "page"), [("16", 800), ("48", 832), ("64", 832), ("896", 896)])
def test_the_baseline_follows_the_users_granularity(asked: str, page: int) -> None:
    flags = ("--block-size", asked, *PREFIX_OFF)
    assert plan(arm="baseline", flags=flags).expect.block_size == page


def test_on_a_gpu_the_backend_is_hwtunes_own() -> None:
    candidate = plan("gfx936")
    assert [(flag.name, flag.value) for flag in candidate.added] == [
        ("--attention-backend", "CUSTOM")
    ]
    assert candidate.expect.backend == "CUSTOM"
    assert candidate.expect.block_size == 832


def test_another_backend_contradicts_the_candidate() -> None:
    with pytest.raises(UsageError, match="--attention-backend FLASH_ATTN"):
        plan("gfx936", flags=("--attention-backend", "FLASH_ATTN"))


def test_before_0_20_the_page_itself_is_the_flag() -> None:
    candidate = plan("gfx936", version="0.18.1+das.dtk2604")
    assert ("--block-size", "832") in [(flag.name, flag.value) for flag in candidate.added]
    assert candidate.expect.block_size == 832


def test_a_kernel_that_is_not_shipped_is_a_note_not_an_expectation() -> None:
    candidate = plan("gfx936")
    assert candidate.expect.kernels == ()
    assert any("decode.triton is not part of this hwtune" in note for note in candidate.notes)


def test_a_plugin_allow_list_is_extended_not_replaced() -> None:
    limited = plan(environ={"VLLM_PLUGINS": "other"})
    assert limited.environment["VLLM_PLUGINS"] == "other,hwtune"
    assert "VLLM_PLUGINS" not in plan().environment


@pytest.mark.parametrize(
    ("flags", "value"),
    [
        (["--port", "1"], "1"),
        (["--port=2"], "2"),
        (["--port", "1", "--port=2"], "2"),
        (["--port"], None),
        (["--support", "1"], None),
        ([], None),
    ],
)
def test_flag_values(flags: list[str], value: str | None) -> None:
    assert flag_value(flags, "--port") == value


def test_underscores_name_the_same_flag() -> None:
    assert flag_value(["--served_model_name", "x"], "--served-model-name") == "x"


def test_a_version_that_is_none_is_named() -> None:
    with pytest.raises(InputError, match="'nightly'"):
        version_tuple("nightly")


def test_a_library_that_is_not_installed_is_a_note() -> None:
    note = (
        "kernel vendor_prefill will not run: its provider flash_attn:varlen_fwd_unified cannot be "
        "imported (install flash_attn)"
    )
    assert note in plan("gfx936").notes


@pytest.mark.parametrize("profile", ["cpu", "gfx936", "gfx942"])
def test_a_plan_reads_back_as_it_was_written(tmp_path: Path, profile: str) -> None:
    written = plan(profile)
    assert read_plan(write_plan(written, tmp_path)) == written


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"block_size": 832', '"block_size": "832"', "block_size: expected a whole number"),
        ('"argv": [', '"argv": [7, ', "argv: expected str, not 7"),
        ('"environment": {', '"environment": {"A": null, ', "environment.A: expected str"),
        ('"arm": "candidate"', '"arm": "third"', "arm: expected one of"),
    ],
)
def test_a_plan_with_a_value_of_the_wrong_type_is_named(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    path = write_plan(plan(), tmp_path)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(InputError, match=f"damaged launch plan: {complaint}"):
        read_plan(path)


@pytest.mark.parametrize(
    ("flags", "flag"),
    [
        (("--config", "vllm.yaml"), "--config"),
        (("--uds", "/tmp/socket"), "--uds"),
        (("--max-model-len", "8192", "--served_model_name"), "--served_model_name"),
        (("--ssl-keyfile=key.pem",), "--ssl-keyfile"),
    ],
)
def test_flags_that_would_make_the_plan_untrue_are_refused(
    flags: tuple[str, ...], flag: str
) -> None:
    with pytest.raises(UsageError, match=f"^{flag}: "):
        plan(flags=flags)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--max-model-len", "512"), "takes 1024 tokens or more, the longest sequence has 512"),
        (("--max-num-batched-tokens", "48"), "--max-num-batched-tokens allows 48"),
    ],
)
def test_a_kernel_that_no_request_can_reach_is_not_expected(
    tmp_path: Path, flags: tuple[str, ...], reason: str
) -> None:
    profile = tmp_path / "long.toml"
    narrow = "min_query_len = 64\nmin_context_len = 1024"
    profile.write_text(EVERY_SHAPE.read_text().replace("min_query_len = 2", narrow))
    planned = plan(str(profile), flags=flags)
    assert planned.expect.kernels == ("page_decode",)
    assert any(reason in note for note in planned.notes)


def test_other_names_of_a_dtype_are_the_same_dtype(tmp_path: Path) -> None:
    profile = tmp_path / "half.toml"
    profile.write_text(EVERY_SHAPE.read_text().replace('"bfloat16"', '"float16"'))
    assert plan(str(profile), flags=("--dtype", "half")).expect.kernels
    assert not plan(str(profile), flags=("--dtype", "bfloat16")).expect.kernels


@pytest.mark.parametrize(
    ("profile", "arm", "backend"),
    [
        ("cpu", "baseline", "CPU_ATTN"),
        ("cpu", "candidate", "CPU_ATTN"),
        ("sm_90", "baseline", None),
        ("sm_90", "candidate", "CUSTOM"),
    ],
)
def test_a_backend_is_expected_only_where_the_choice_is_known(
    profile: str, arm: str, backend: str | None
) -> None:
    assert plan(profile, arm).expect.backend == backend


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not a launch plan"),
        ("[]", "schema_version None"),
        ('{"schema_version": 99}', "schema_version 99"),
        ('{"schema_version": 1}', "damaged launch plan"),
        (json.dumps({"schema_version": 1, "expect": 3}), "damaged launch plan"),
    ],
)
def test_a_bad_plan_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(InputError, match=complaint):
        read_plan(path)


RAY = ("--distributed-executor-backend", "ray")


@pytest.mark.parametrize(
    "flags", [RAY, ("--data-parallel-backend=ray",), ("-pp", "2"), ("--data-parallel-size", "2")]
)
def test_the_plan_reaches_workers_of_a_ray_cluster(flags: tuple[str, ...]) -> None:
    planned = plan(flags=(*PREFIX_OFF, *flags))
    assert planned.environment["VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"] == "HWTUNE_PLAN"
    assert planned.environment.get("RAY_DEDUP_LOGS") == ("0" if "ray" in str(flags) else None)
    assert any("must see the run directory" in n for n in planned.notes) is ("ray" in str(flags))


def test_the_users_own_variables_for_ray_stay() -> None:
    name = "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"
    planned = plan(flags=(*PREFIX_OFF, *RAY), environ={name: "MY_TOKEN"})
    assert planned.environment[name] == "MY_TOKEN,HWTUNE_PLAN"
    assert name not in plan().environment


def test_a_vllm_that_copies_nothing_more_to_ray_is_a_note() -> None:
    planned = plan("gfx936", flags=RAY, version="0.16.0")
    assert "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY" not in planned.environment
    assert any("does not copy HWTUNE_PLAN to Ray workers" in note for note in planned.notes)


@pytest.mark.parametrize(
    ("environ", "warned"),
    [({}, True), ({"VLLM_PLUGINS": "ascend"}, True), ({"VLLM_PLUGINS": "hwtune"}, False)],
)
def test_vllm_ascend_where_there_is_no_npu_is_a_note(environ: dict[str, str], warned: bool) -> None:
    planned = plan(environ=environ, ascend_version="0.18.0")
    assert any("vllm-ascend 0.18.0 is installed" in note for note in planned.notes) is warned


@pytest.mark.parametrize("profile", ["gfx942", "cpu"])
def test_mla_is_refused_in_the_candidate_and_left_to_vllm_in_the_baseline(profile: str) -> None:
    mla = {"is_mla": True, "head_size": 576, "num_kv_heads": 1, "kv_lora_rank": 512}
    with pytest.raises(InfeasibleError, match=r"MLA.*--arm baseline"):
        plan(profile=profile, attention=mla)
    assert plan(profile=profile, arm="baseline", attention=mla).expect.backend is None


def test_no_backend_is_expected_of_a_model_without_attention() -> None:
    assert plan(profile="gfx942").expect.backend == "CUSTOM"
    assert plan(profile="gfx942", attention={"num_layers": 0}).expect.backend is None
