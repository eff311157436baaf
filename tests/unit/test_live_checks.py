"""Log, plan and endpoints of one server compared, and its capacity with the derivation's."""

from __future__ import annotations

import dataclasses

import pytest

from hwtune.domain.check_capacity import capacity_check
from hwtune.domain.check_live import live_checks
from hwtune.domain.check_records import Check
from hwtune.domain.collecting import EvidenceCollector
from hwtune.domain.deployment import Deployment
from hwtune.domain.evidence import Evidence, Place, Sighting
from hwtune.domain.page_derive import derive_page
from hwtune.domain.page_steps import PageDerivation
from hwtune.domain.server_flags import aligned_by_plugin, given_flags, observed_deployment
from hwtune.families import read_shape
from hwtune.io.marker_sets import load_markers

HEAD = "(EngineCore pid=2) INFO 11-30 06:51:37 [core.py:133] "
URL = "http://127.0.0.1:8000/metrics"
CONFIG = {
    "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "dtype": "bfloat16",
    "hidden_size": 5120, "num_hidden_layers": 64, "head_dim": 256, "num_attention_heads": 24,
    "num_key_value_heads": 4, "max_position_embeddings": 262144, "linear_num_value_heads": 48,
    "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32",
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 16,
}  # fmt: skip


def _evidence(*lines: str, live: dict[str, str | int | bool] | None = None) -> Evidence:
    collector = EvidenceCollector(load_markers())
    collector.feed("x.log", enumerate((HEAD + line for line in lines), start=1))
    for fact, value in (live or {}).items():
        place = Place(file=URL, line=None, process=None, time=None, text=fact)
        collector.add(Sighting(fact=fact, value=value, rank=20, place=place))
    return collector.evidence()


def _page(version: str = "0.18.1") -> PageDerivation:
    deployment = Deployment(version=version, enable_prefix_caching=False)
    return derive_page(read_shape(CONFIG, "config.json"), deployment, alignment_tokens=16)


PAGE = "Setting attention block size to {} tokens to ensure that attention page size is >= mamba page size."
ENGINE = (
    "Initializing a V1 LLM engine (v0.18.1) with config: model='m', max_seq_len={}, "
    "enable_prefix_caching=False, x=1"
)
MEMORY = "Available KV cache memory: {} GiB"
TOKENS = "GPU KV cache size: {} tokens"
CONCURRENCY = "Maximum concurrency for 262,144 tokens per request: {}x"


def _capacity(*lines: str, page: int = 784, **live: int) -> Check:
    stated = [ENGINE.format(262144), PAGE.format(page), *lines]
    return capacity_check(_evidence(*stated, live=dict(live)), _page())


def test_the_capacity_is_the_one_derived_from_the_memory() -> None:
    """A log of a 27B model on a 64 GB device, vLLM 0.18.1."""
    check = _capacity(MEMORY.format("6.77"), TOKENS.format("27,440"), CONCURRENCY.format("0.42"))
    assert (check.status, check.seen) == ("passed", "27,440 tokens; 0.42 requests of full length")
    assert [place.line for place in check.evidence] == [4, 5]


def test_another_capacity_fails_and_says_what_was_derived() -> None:
    check = _capacity(MEMORY.format("6.77"), TOKENS.format("54,880"), CONCURRENCY.format("0.42"))
    assert check.status == "failed"
    assert check.reason.startswith("54,880 tokens; derived 27,440 tokens, 0.42 requests of 262,144")
    assert [place.line for place in check.evidence] == [4, 5]


def test_the_number_of_blocks_stands_for_the_memory() -> None:
    assert _capacity(TOKENS.format("27,440"), num_gpu_blocks=141).status == "passed"
    assert _capacity(TOKENS.format("27,440"), num_gpu_blocks=282).status == "failed"


@pytest.mark.parametrize(
    ("lines", "page", "reason"),
    [
        ([TOKENS.format("27,440")], 784, "neither memory nor number of blocks"),
        ([MEMORY.format("6.77")], 784, "states no capacity"),
        ([MEMORY.format("6.77"), TOKENS.format("27,440")], 832, "the page is 832, derived was 784"),
    ],
)
def test_what_cannot_be_compared_is_skipped(lines: list[str], page: int, reason: str) -> None:
    check = _capacity(*lines, page=page)
    assert check.status == "skipped"
    assert reason in check.reason


def test_the_deployment_is_what_the_engine_resolved_not_what_was_asked() -> None:
    evidence = _evidence(
        "non-default args: {'kv_cache_dtype': 'fp8', 'enable_prefix_caching': True, "
        "'block_size': 64, 'gpu_memory_utilization': 0.9, 'compilation_config': {'mode': 3}}",
        "Initializing a V1 LLM engine (v0.25.1+cpu) with config: model='m', "
        "speculative_config=SpeculativeConfig(method='mtp', model='m', num_spec_tokens=3), "
        "dtype=torch.bfloat16, tensor_parallel_size=2, max_seq_len=8192, kv_cache_dtype=fp8, "
        "enable_prefix_caching=False, x=1",
    )
    found = observed_deployment(evidence)
    assert (found.version, found.tensor_parallel_size, found.max_model_len) == ("0.25.1", 2, 8192)
    assert (found.kv_cache_dtype, found.block_size, found.dtype) == ("fp8", 64, "bfloat16")
    assert (found.enable_prefix_caching, found.gpu_memory_utilization) == (False, 0.9)
    assert (found.num_speculative_tokens, found.speculative_method) == (3, "mtp")


def test_flags_that_are_no_literal_are_none() -> None:
    assert given_flags(_evidence("non-default args: {'a': object()}")) == {}


def test_the_plugins_alignment_is_taken_when_it_says_that_it_is_in() -> None:
    mark = "hwtune[a1] {} backend=X class=X alignment=64 kernels=k"
    assert aligned_by_plugin(_evidence(mark.format("registered")))
    assert not aligned_by_plugin(_evidence("hwtune[a1] observing backend=X"))


def _same(*lines: str, **live: str | int | bool) -> Check | None:
    found = list(live_checks(_evidence(*lines, live=dict(live))))
    return found[0] if found else None


def test_a_log_of_another_server_than_the_one_that_answers() -> None:
    check = _same(ENGINE.format(8192), vllm_version="0.32.0", max_model_len=8192)
    assert check is not None
    assert (check.name, check.status) == ("same_server", "failed")
    assert check.reason == (
        "the log is of another server: vllm_version is 0.32.0 live and 0.18.1 in the log"
    )


def test_log_and_endpoints_agree() -> None:
    check = _same(ENGINE.format(8192), vllm_version="0.18.1", max_model_len=8192)
    assert check is not None
    assert (check.status, check.seen) == ("passed", "vllm_version, max_model_len agree")


def test_one_source_alone_is_compared_with_nothing() -> None:
    assert _same(ENGINE.format(8192)) is None
    assert _same(vllm_version="0.18.1") is None


def test_what_was_asked_for_does_not_make_it_another_server() -> None:
    """A log states a wish and a decision; the endpoint agrees with the decision."""
    check = _same(
        "non-default args: {'enable_prefix_caching': True}",
        ENGINE.format(8192),
        prefix_caching=False,
    )
    assert check is not None
    assert check.status == "passed"


def test_places_know_a_running_server_from_a_file() -> None:
    place = Place(file=URL, line=None, process=None, time=None, text="x")
    assert place.is_url
    assert not dataclasses.replace(place, file="server.log").is_url
