from __future__ import annotations

from typing import Any

import pytest

from hwtune.domain.errors import InputError
from hwtune.domain.scheduler.setup import prepare
from hwtune.domain.scheduler.values import Speculation
from hwtune.io.scenarios import read_scenario

CONFIG = {"max_num_batched_tokens": 64, "max_num_seqs": 4, "max_model_len": 256}
FULL = {"type": "full", "block_size": 16}
REQUEST = {"id": "a", "prompt_len": 5, "output_len": 2}


def record(**changes: Any) -> dict[str, Any]:
    base = {
        "config": CONFIG,
        "kv": {"num_blocks": 20, "groups": [FULL]},
        "requests": [REQUEST],
    }
    return {**base, **changes}


def config(**changes: Any) -> dict[str, Any]:
    return record(config={**CONFIG, **changes})


def test_every_key_reaches_its_field() -> None:
    spec = {"k": 3, "method": "mtp", "accept": [3, 0], "draft_lens": [1]}
    given = config(
        **{"async": True},
        max_num_active_seqs=2,
        max_num_scheduled_tokens=60,
        chunked_prefill=True,
        long_prefill_token_threshold=32,
        long_prefill_adaptive=True,
        policy="priority",
        reserve_full_isl=False,
        watermark=0.1,
        prefix_caching=True,
        spec=spec,
    )
    read = read_scenario(given).config
    assert (read.max_num_active_seqs, read.max_num_scheduled_tokens) == (2, 60)
    assert (read.long_prefill_token_threshold, read.long_prefill_adaptive) == (32, True)
    assert (read.policy, read.reserve_full_isl, read.watermark) == ("priority", False, 0.1)
    assert (read.prefix_caching, read.async_scheduling) == (True, True)
    assert read.speculation == Speculation(
        num_tokens=3, method="mtp", accepted=(3, 0), drafted=(1,)
    )


def test_vllms_own_names_are_understood() -> None:
    given = config(
        enable_chunked_prefill=True,
        enable_prefix_caching=True,
        async_scheduling=True,
        scheduler_reserve_full_isl=False,
    )
    read = read_scenario(given).config
    assert (read.prefix_caching, read.async_scheduling, read.reserve_full_isl) == (
        True,
        True,
        False,
    )


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (record(extra=1), "unknown key extra"),
        (config(budget=6), "unknown key config.budget"),
        (record(kv={"num_blocks": 20, "groups": [{**FULL, "pages": 1}]}), "kv.groups[0].pages"),
        (record(requests=[{**REQUEST, "images": 1}]), "requests[0].images"),
        (config(pipeline_parallel_size=2), "the cadence of pipeline stages"),
        (config(kv_connector="Nixl"), "KV connectors"),
        (config(scheduler_cls="mine.Scheduler"), "schedulers that are not vLLM's own"),
        (config(max_num_encoder_input_tokens=64), "encoder inputs"),
        (config(policy="lottery"), "config.policy"),
        (config(max_num_seqs="4"), "config.max_num_seqs"),
        (config(watermark="much"), "watermark"),
        (record(kv={"num_blocks": 20, "groups": [{"type": "ring", "block_size": 16}]}), "'ring'"),
        (record(requests=[{"id": "a", "prompt_len": 5}]), "requests[0].output_len"),
        (record(requests="all"), "requests: expected a list"),
        ({"config": CONFIG}, "no kv"),
        (record(requests=[{**REQUEST, "prefix_id": float("nan")}]), "requests: NaN"),
        (record(tags=[float("inf")]), "tags: NaN and infinity"),
        (record(kv={"num_blocks": 9, "groups": [{**FULL, "mode": float("nan")}]}), "kv: NaN"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(given: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError) as caught:
        read_scenario(given)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_switched_off_features_are_no_features() -> None:
    read_scenario(config(pipeline_parallel_size=1, kv_connector=None, lora=False))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (config(max_num_seqs=65), "max_num_batched_tokens must not be below max_num_seqs"),
        (config(chunked_prefill=False), "without chunked prefill"),
        (config(max_num_active_seqs=5), "max_num_active_seqs"),
        (config(watermark=1.0), "watermark"),
        (config(spec={"k": 2, "method": "dspark"}), "'dspark' is not modelled"),
        (config(spec={"k": 0}), "speculative tokens"),
        (config(spec={"k": 1, "accept": []}), "accept"),
        (record(requests=[REQUEST, REQUEST]), "'a' is used twice"),
        (record(requests=[{**REQUEST, "prompt_len": 0}]), "prompt_len must be at least 1"),
        (record(kv={"num_blocks": 1, "groups": [FULL]}), "num_blocks"),
        (record(kv={"num_blocks": 9, "groups": [{"type": "swa", "block_size": 16}]}), "window"),
        (record(kv={"num_blocks": 9, "groups": [FULL], "prefix_match_unit": 8}), "match_unit 8"),
        (config(spec={"k": 1, "draft_lens": [1, 2]}), "draft_lens must not be above k, 1"),
        (
            record(kv={"num_blocks": 9, "groups": [FULL], "retention": 16}),
            "only sliding-window and mamba groups",
        ),
        (
            record(
                config={**CONFIG, "prefix_caching": True},
                kv={"num_blocks": 9, "groups": [FULL, {"type": "mamba", "block_size": 256}]},
            ),
            "needs their mode align",
        ),
        (
            record(kv={"num_blocks": 9, "groups": [{**FULL, "block_size": 0}], "retention": 16}),
            "block_size must be at least 1",
        ),
        (record(vllm="0.5.0"), "vLLM 0.5.0"),
        (record(vllm="newest"), "'newest'"),
    ],
)
def test_what_vllm_would_refuse_is_refused(given: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError) as caught:
        prepare(read_scenario(given))
    assert named in str(caught.value)
