"""Facts from lines: precedence, contradictions, evidence, markers with a nonce."""

from __future__ import annotations

import pytest

from hwtune.domain.collecting import EvidenceCollector, parse_fields
from hwtune.domain.evidence import Evidence, Value
from hwtune.io.marker_sets import load_markers

WORKER = "(Worker pid=9) INFO 11-30 06:51:47 [backend.py:40] "
ENGINE = "(EngineCore pid=2) INFO 11-30 06:51:37 [core.py:133] "
SERVER = "(APIServer pid=1) INFO 11-30 06:51:30 [api_utils.py:286] "
PAGE = "Setting attention block size to {} tokens to ensure that attention page size is >= mamba page size."
REGISTERED = f"{WORKER}hwtune[a1] registered backend=CPU_ATTN class=X alignment=64 kernels=k1"
FIRST_HIT = "hwtune[a1] first hit kernel=k1 query=1024 context=1024 block_size=832"


def _evidence(*lines: str, nonce: str | None = None) -> Evidence:
    collector = EvidenceCollector(load_markers(), nonce=nonce)
    collector.feed("x.log", enumerate(lines, start=1))
    return collector.evidence()


def test_a_fact_carries_its_place() -> None:
    evidence = _evidence("other text", f"{WORKER}{PAGE.format(832)}")
    (place,) = evidence.places("attention_block_size")
    assert (place.file, place.line, place.process, place.time) == (
        "x.log", 2, "Worker pid=9", "11-30 06:51:47",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        ([f"{ENGINE}Resolved architecture: X", "INFO:     Application startup complete."], True),
        ([f"{ENGINE}Resolved architecture: X"], False),
        ([f"{ENGINE}Traceback (most recent call last):", f"{ENGINE}ValueError: x"], None),
        (["INFO:     Application startup complete.", "Killed"], True),
        ([f"{ENGINE}init engine (profile, create kv cache, warmup model) took 9 s"], None),
    ],
)
def test_whether_the_start_completed(lines: list[str], value: bool | None) -> None:
    assert _evidence(*lines).value("startup_complete") is value


def test_a_line_of_the_api_server_shows_that_offline_use_is_no_excuse() -> None:
    ready = f"{ENGINE}init engine (profile, create kv cache, warmup model) took 9 s"
    evidence = _evidence("(APIServer pid=7) INFO 11-30 06:51:47 [a.py:1] hello", ready)
    assert evidence.value("startup_complete") is False


def test_what_nothing_states_is_absent() -> None:
    assert dict(_evidence("a line").facts) == {}


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        ([f"{SERVER}non-default args: {{'enable_prefix_caching': True}}"], True),
        (
            [
                f"{SERVER}non-default args: {{'enable_prefix_caching': True}}",
                (
                    f"{ENGINE}Initializing a V1 LLM engine (v0.25.1) with config: model='m', "
                    "enable_prefix_caching=False, x=1"
                ),
            ],
            False,
        ),
        (
            [
                f"{SERVER}non-default args: {{'enable_prefix_caching': True}}",
                (
                    f"{SERVER}Hybrid or mamba-based model detected without support for prefix "
                    "caching: disabling."
                ),
            ],
            False,
        ),
    ],
)
def test_what_the_engine_resolved_outranks_what_was_asked(lines: list[str], value: bool) -> None:
    fact = _evidence(*lines).facts["prefix_caching"]
    assert fact.value is value
    assert len(fact.others) == len(lines) - 1


def test_the_smallest_capacity_of_all_workers_counts() -> None:
    sizes = ("1,594,928", "1,590,736", "1,611,664")
    fact = _evidence(*(f"{WORKER}GPU KV cache size: {size} tokens" for size in sizes)).facts[
        "kv_cache_tokens"
    ]
    assert fact.value == 1_590_736
    assert [item.value for item in fact.others] == [1_594_928, 1_611_664]


@pytest.mark.parametrize(
    ("line", "fact", "value"),
    [
        (("Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN', "
         "'TRITON_ATTN']."), "attention_backend", "FLASH_ATTN"),
        (("Using FLASH_ATTN attention backend out of potential backends: ('FLASH_ATTN', "
         "'TRITON_ATTN')"), "backend_candidates", ("FLASH_ATTN", "TRITON_ATTN")),
        ("Using Flash Attention backend on V1 engine.", "attention_backend", "Flash Attention"),
        ("Using AttentionBackendEnum.TRITON_ATTN backend.", "attention_backend", "TRITON_ATTN"),
        ("Using AttentionBackendEnum.TORCH_SDPA for MMEncoderAttention.", "attention_backend", None),
        ("Using backend AttentionBackendEnum.FLASH_ATTN for vit attention", "attention_backend", None),
        ("Using Torch SDPA backend for ViT model.", "attention_backend", None),
        ("Using 'MARLIN' NvFp4 MoE backend out of potential backends: ['MARLIN'].",
         "backend_candidates", None),
        ("Using triton Mamba SSU backend.", "attention_backend", None),
        ("Prefetching checkpoint files (num_threads=8, block_size=16777216 bytes)",
         "requested_block_size", None),
        ("kv cache group sizes (896, 8)", "manager_block_sizes", (896, 8)),
        ("Overriding num_gpu_blocks=9 with num_gpu_blocks_override=512", "num_gpu_blocks", 512),
        ("Overriding num_gpu_blocks=0 with num_gpu_blocks_override=512", "num_gpu_blocks", None),
    ],
)  # fmt: skip
def test_lines_that_look_alike(line: str, fact: str, value: Value | None) -> None:
    assert _evidence(f"{ENGINE}{line}").value(fact) == value


@pytest.mark.parametrize(
    "line",
    [
        (
            "[ROCm] PyTorch's native GELU with tanh approximation is unstable. Falling back to "
            "GELU(approximate='none')."
        ),
        (
            "FlashInfer is not available. Falling back to the PyTorch-native implementation of "
            "top-p & top-k sampling."
        ),
        "FlashInfer autotune cache entries found.Falling back to default tactics.",
    ],
)
def test_other_fall_backs_are_not_attentions(line: str) -> None:
    assert _evidence(f"{ENGINE}{line}").fallbacks == ()


def test_page_and_scheduler_block_may_both_be_true() -> None:
    evidence = _evidence(f"{WORKER}{PAGE.format(1600)}", f"{ENGINE}kv lcm block sizes 8")
    assert evidence.value("attention_block_size") == 1600
    assert evidence.value("scheduler_block_size") == 8


def test_registered_and_hit_are_different_marks() -> None:
    evidence = _evidence(REGISTERED, f"{WORKER}{FIRST_HIT}")
    assert [mark.kind for mark in evidence.marks] == ["registered", "first hit"]
    assert evidence.marks[1].fields["kernel"] == "k1"
    assert evidence.value("plugins_loaded") == ("hwtune",)


@pytest.mark.parametrize(
    "line",
    [
        f"(APIServer pid=1) INFO 11-30 06:52:00 [logger.py:40] Received request: '{FIRST_HIT}'",
        f"(APIServer pid=1) INFO 11-30 06:52:00 [logger.py:40] {FIRST_HIT}",
        f"(APIServer pid=1) INFO 11-30 06:52:00 [x.py:40] Using chat template: {FIRST_HIT}",
        f"(APIServer pid=1) {FIRST_HIT}",
        FIRST_HIT,
        f"prompt='{WORKER}{FIRST_HIT}'",
        f"{WORKER}{FIRST_HIT.replace('a1', 'b2')}",
    ],
)
def test_quoted_or_foreign_markers_are_no_evidence(line: str) -> None:
    evidence = _evidence(REGISTERED, line)
    assert [mark.kind for mark in evidence.marks] == ["registered"]
    assert evidence.foreign_marks == 1


def test_a_marker_inside_a_many_line_message_is_no_evidence() -> None:
    head = "(APIServer pid=1) INFO 11-30 06:52:00 [x.py:40] "
    evidence = _evidence(REGISTERED, f"{head}Using supplied chat template:\r", f"{head}{FIRST_HIT}")
    assert [mark.kind for mark in evidence.marks] == ["registered"]


def test_markers_survive_a_log_with_windows_line_ends() -> None:
    evidence = _evidence(REGISTERED + "\r", f"{WORKER}{FIRST_HIT}\r", f"{WORKER}{FIRST_HIT}\r")
    assert [mark.kind for mark in evidence.marks] == ["registered", "first hit", "first hit"]


def test_the_plans_nonce_decides() -> None:
    assert _evidence(REGISTERED, nonce="other").marks == ()


def test_two_registrations_without_a_plan_are_ambiguous() -> None:
    evidence = _evidence(REGISTERED, REGISTERED.replace("a1", "b2"))
    assert (evidence.nonce, evidence.foreign_marks) == (None, 2)


def test_fields_may_hold_spaces() -> None:
    text = "name=l.3 takes=- refuses=k1:page 784 not a multiple of 64;k2:no"
    assert parse_fields(text) == {
        "name": "l.3",
        "takes": "-",
        "refuses": "k1:page 784 not a multiple of 64;k2:no",
    }
