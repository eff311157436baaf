"""Mistakes that people made with real servers, in few words, with the established answer."""

from __future__ import annotations

import pytest

from hwtune.domain.answers import remarks
from hwtune.domain.collecting import EvidenceCollector
from hwtune.domain.evidence import Evidence
from hwtune.domain.expectations import parse_expectations
from hwtune.domain.failures import first_cause
from hwtune.domain.markers import MarkerReport, check
from hwtune.domain.metrics import metric_sightings
from hwtune.io.marker_sets import load_diagnoses, load_markers

INFO = "(EngineCore pid=9) INFO 11-30 06:51:47 [core.py:1] "
WARNING = "(EngineCore pid=9) WARNING 11-30 06:51:47 [core.py:1] "
ERROR = "(EngineCore pid=9) ERROR 11-30 06:51:48 [core.py:2] "
STARTED = "(APIServer pid=7) INFO:     Application startup complete."
PAGE = (
    INFO
    + "Setting attention block size to {} tokens to ensure that attention page size is >= mamba page size."
)
HYBRID_OFF = (
    INFO + "Hybrid or mamba-based model detected without support for prefix caching: disabling."
)


def _fails(text: str) -> list[str]:
    return [
        f"{ERROR}Traceback (most recent call last):",
        f'{ERROR}  File "/a/b.py", line 3, in g',
        ERROR + text,
    ]


def _judge(*lines: str, expect: str = "", metrics: str = "") -> tuple[Evidence, MarkerReport]:
    collector = EvidenceCollector(load_markers())
    collector.feed("x.log", enumerate(lines, start=1))
    for sighting in metric_sightings(metrics, "/metrics"):
        collector.add(sighting)
    evidence = collector.evidence()
    expected = parse_expectations(expect.split(), base=None, facts=load_markers().facts)
    report = check(
        evidence,
        expected.expect,
        require_kernel_hits=True,
        facts=expected.facts,
        diagnoses=load_diagnoses(),
    )
    return evidence, report


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ([PAGE.format(784), *_fails("RuntimeError: Paged KV cache block size must be divisible by "
                                    "64 at gfx936 platform")], "page_not_divisible"),
        ([PAGE.format(784), *_fails("ValueError: No common block size for 784. ")],
         "page_not_divisible"),
        (_fails("ValueError: None of the kernel sizes [128] can divide physical block size 16 "
                "evenly"), "page_not_divisible"),
        ([PAGE.format(832), *_fails("torch.AcceleratorError: HIP error: operation not permitted "
                                    "when stream is capturing")], "capture_violation"),
        (_fails("TypeError: unified_attention() got an unexpected keyword argument 'sinks'"),
         "library_mismatch"),
        (_fails("ValueError: Free memory on device cuda:0 (9.2/63.98 GiB) on startup is less than "
                "desired GPU memory utilization (0.95, 60.79 GiB)."), "memory_taken"),
        (_fails("AssertionError: In Mamba cache align mode, block_size (2096) must be <= "
                "max_num_batched_tokens (2048)."), "budget_below_page"),
        (_fails("RuntimeError: Paged KV cache block size must be divisible by 256"),
         "page_not_divisible"),
        (_fails("RuntimeError: Expect (32 <= headDim <= 2048) && (numTokensPerPage <= 128), got "
                "headDimPerCtaV=%d, numTokensPerPage=%d256544"), "page_above_kernel_max"),
        (_fails("NotImplementedError: The page size of the layer is not divisible by the maximum "
                "page size. Cannot unify by adjusting block_size."), "pages_do_not_unify"),
        (_fails("ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (614)."),
         "too_many_sequences"),
        (_fails("ImportError: libgalaxyhip.so.5: cannot open shared object file: No such file"),
         "library_missing"),
        (_fails("ValueError: page_table width=518 exceeds scratch capacity 512"),
         "page_table_too_small"),
        (_fails("AssertionError: There is a bug in FlashInfer block_size 16 head size 256 support. "
                "Please avoid this combination by passing --block-size 32 or --block-size 64."),
         "kernel_block_16_head_256"),
        (_fails("RuntimeError: shape mismatch: value tensor of shape [0, 24, 32, 64] cannot be "
                "broadcast to indexing result of shape [4, 24, 32, 64]"), "state_block_breaks_chunks"),
        (_fails("RuntimeError: No available implementation for op='attention_backend'. Registered: "
                "['vendor.cuda']"), "no_implementation_registered"),
        (_fails("ValueError: Block size must be a multiple of 16."), "block_not_multiple_of_16"),
        (_fails("ValueError: To serve at least one request with the model's max seq len (262144), "
                "(18.35 GiB KV cache is needed, which is larger than the available KV cache memory "
                "(8.72 GiB)."), "cache_too_small"),
        (_fails("torch.AcceleratorError: CUDA error: no kernel image is available for execution on "
                "the device"), "no_code_for_device"),
        (_fails("AssertionError: Input shapes should have M >= 1, N >= 1 and K >= 16"), None),
        ([f"{INFO}x"], "log_cut"),
    ],
)  # fmt: skip
def test_the_first_cause_and_its_likeliest_reason(lines: list[str], cause: str | None) -> None:
    _, report = _judge(*lines)
    startup = report.checks[0]
    assert startup.status == "failed"
    assert (startup.diagnosis[0].id if startup.diagnosis else None) == cause


def test_an_assertion_without_text_names_where_it_was_raised() -> None:
    evidence, _ = _judge(*_fails("AssertionError"))
    cause = first_cause(evidence)
    assert cause is not None
    assert cause.text == "AssertionError (raised at b.py, line 3, in g)"


def test_a_traceback_may_begin_behind_other_text() -> None:
    lines = [f"{ERROR}EngineCore hit an exception: Traceback (most recent call last):",
             f"{ERROR}ValueError: Block size must be a multiple of 16."]  # fmt: skip
    cause = first_cause(_judge(*lines)[0])
    assert cause is not None
    assert cause.text == "ValueError: Block size must be a multiple of 16."


def test_the_page_line_is_not_the_schedulers_block() -> None:
    metrics = 'vllm:cache_config_info{block_size="8"} 1.0'
    evidence, _ = _judge(PAGE.format(1600), STARTED, metrics=metrics)
    assert (evidence.value("attention_block_size"), evidence.value("scheduler_block_size")) == (
        1600,
        8,
    )
    assert any("1600 and scheduler block 8 are both true" in text for text in remarks(evidence))


def test_a_flag_that_the_engine_overrode() -> None:
    flags = f"{INFO}non-default args: {{'enable_prefix_caching': True, 'tensor_parallel_size': 2}}"
    evidence, report = _judge(flags, HYBRID_OFF, STARTED, expect="prefix_caching=on")
    assert evidence.value("prefix_caching") is False
    assert [item.name for item in report.failed] == ["prefix_caching"]


def test_the_explicit_block_size_is_a_grain() -> None:
    flags = f"{INFO}non-default args: {{'block_size': 816}}"
    _, report = _judge(flags, PAGE.format(1632), STARTED, expect="block_size=816")
    assert report.failed[0].diagnosis[0].id == "user_block_size"


@pytest.mark.parametrize(
    "line",
    [
        (
            f"{WARNING}--block-size 8 precluded higher-priority backend(s) FLASH_ATTN. Using "
            "FLEX_ATTENTION instead, which may result in reduced performance."
        ),
        (
            f"{INFO}Gemma4 model has heterogeneous head dimensions (head_dim=256, global_head_dim=512). "
            "Forcing TRITON_ATTN backend to prevent mixed-backend numerical divergence."
        ),
        (
            f"{ERROR}Cannot use FA version 2 is not supported due to FA2 is only supported on devices "
            "with compute capability >= 8"
        ),
    ],
)
def test_silent_changes_of_the_backend_are_reported(line: str) -> None:
    evidence, _ = _judge(line, STARTED)
    assert len(evidence.fallbacks) == 1


def test_reasons_of_refused_backends() -> None:
    text = (
        "No valid attention backend found for cuda with AttentionSelectorConfig(head_size=128, "
        "block_size=8). Reasons: {FLASH_ATTN: [block_size not supported], FLASHINFER: [sink "
        "setting not supported]}."
    )
    evidence, report = _judge(*_fails(f"ValueError: {text}"))
    assert evidence.value("backends_refused") == (
        "FLASH_ATTN: block_size not supported",
        "FLASHINFER: sink setting not supported",
    )
    assert report.checks[0].diagnosis[0].id == "no_backend_fits"


def test_another_backend_than_wanted() -> None:
    line = f"{INFO}Using TRITON_ATTN attention backend out of potential backends: ['TRITON_ATTN']."
    _, report = _judge(line, STARTED, expect="backend=FLASHINFER")
    assert report.failed[0].reason == "expected FLASHINFER, seen TRITON_ATTN"


def test_an_available_plugin_that_was_never_activated() -> None:
    lines = [
        f"{INFO}Available plugins for group vllm.platform_plugins:",
        f"{INFO}- metal -> vllm_metal:register",
        f"{INFO}Initializing a V1 LLM engine (v0.20.0) with config: model='m', device_config=cpu, x=1",
        STARTED,
    ]
    text = " ".join(remarks(_judge(*lines)[0]))
    assert "no line says loaded or activated: metal; the engine's device is cpu" in text


def test_a_private_marker_at_import_time_is_no_hit() -> None:
    line = "INFO 07-09 20:04:35 [triton_attn.py:1] XDB_FLASH_ATTN_PREFILL enabled"
    evidence, report = _judge(line, STARTED, expect="hits=vendor_prefill")
    assert evidence.marks == ()
    assert {item.name for item in report.failed} == {"plugin", "kernel:vendor_prefill"}


def test_a_misspelt_switch_is_named() -> None:
    line = f"{WARNING}Unknown vLLM environment variable detected: VLLM_FUSED_PREFIL"
    assert any("VLLM_FUSED_PREFIL" in text for text in remarks(_judge(line, STARTED)[0]))


def test_start_up_complete_and_then_the_port_was_taken() -> None:
    prefix = "  | [2024-09-05T00:38:34Z] "
    _, report = _judge(
        f"{prefix}INFO:     Application startup complete.",
        f"{prefix}ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 44319): "
        "[errno 98] address already in use",
    )
    assert [(item.name, item.diagnosis[0].id) for item in report.failed] == [
        ("health", "port_taken")
    ]


def test_json_and_text_lines_mix_in_one_log() -> None:
    message = PAGE.format(832).rpartition("] ")[2]
    evidence, _ = _judge(
        '(EngineCore pid=9) {"asctime": "2026-01-01 10:00:00", "levelname": "INFO", "name": '
        f'"vllm.platforms.interface", "processName": "EngineCore", "process": 9, "message": "{message}"}}',
        STARTED,
    )
    (place,) = evidence.places("attention_block_size")
    assert (evidence.value("attention_block_size"), place.process) == (832, "EngineCore pid=9")


def test_the_wrong_checkpoint_under_the_right_name() -> None:
    padding = (
        f"{INFO}Padding mamba page size by 2.64% to ensure that mamba page size and attention page "
        "size are exactly equal."
    )
    _, report = _judge(PAGE.format(544), padding, STARTED, expect="block_size=784 padding_pct=0.13")
    assert {item.name for item in report.failed} == {"page", "padding"}
    assert "different_shape" in {cause.id for cause in report.failed[0].diagnosis}


def test_an_assertion_of_page_unification_is_known_by_its_function() -> None:
    lines = [f"{ERROR}Traceback (most recent call last):",
             f'{ERROR}  File "/a/kv_cache_utils.py", line 9, in unify_kv_cache_spec_page_size',
             f"{ERROR}AssertionError"]  # fmt: skip
    _, report = _judge(*lines)
    assert report.checks[0].diagnosis[0].id == "pages_do_not_unify"


def test_the_last_of_two_pages_counts_and_both_are_shown() -> None:
    """A default of 16 that a later step overwrote, or the other way round."""
    evidence, _ = _judge(PAGE.format(16), PAGE.format(4480), STARTED)
    assert evidence.value("attention_block_size") == 4480
    assert any("also stated: 16" in text for text in remarks(evidence))


@pytest.mark.parametrize(("page", "passes"), [(528, False), (784, False), (576, True), (832, True)])
def test_a_page_that_the_kernel_cannot_divide(page: int, passes: bool) -> None:
    _, report = _judge(PAGE.format(page), STARTED, expect="block_multiple=64")
    assert report.passed is passes
    if page == 784:
        assert report.failed[0].reason == "784 = 12 x 64 + 16"


def test_what_was_asked_for_and_what_is_in_force_are_two_facts() -> None:
    flags = f"{INFO}non-default args: {{'block_size': 816}}"
    text = " ".join(remarks(_judge(flags, PAGE.format(1632), STARTED)[0]))
    assert "--block-size 816 was asked for, and the page is 1632, the next multiple" in text


@pytest.mark.parametrize(("drafter", "least"), [("", "2096 tokens cannot hit"), (
    "speculative_config=SpeculativeConfig(method='mtp', n=3), ", "so 4192")])  # fmt: skip
def test_prefixes_below_a_page_cannot_hit(drafter: str, least: str) -> None:
    engine = (
        f"{INFO}Initializing a V1 LLM engine (v0.20.0) with config: model='m', {drafter}"
        "enable_prefix_caching=True, x=1"
    )
    text = " ".join(remarks(_judge(engine, PAGE.format(2096), STARTED)[0]))
    assert "shared prefixes below 2096 tokens cannot hit" in text
    assert least in text


def test_without_prefix_caching_nothing_is_said_of_prefixes() -> None:
    assert not any(
        "prefixes" in t for t in remarks(_judge(HYBRID_OFF, PAGE.format(960), STARTED)[0])
    )


def test_the_root_cause_not_the_report_of_the_executor() -> None:
    lines = [*_fails("ValueError: Block size must be a multiple of 16."),
             f"{ERROR}Got fatal signal from worker processes, shutting down. See stack trace above."]  # fmt: skip
    cause = first_cause(_judge(*lines)[0])
    assert cause is not None
    assert cause.text == "ValueError: Block size must be a multiple of 16."


def test_blocks_of_the_first_engine() -> None:
    lines = ["VLLM server is not ready yet. Waiting...",
             "INFO 08-14 10:01:31 gpu_executor.py:102] # GPU blocks: 215, # CPU blocks: 2048"]  # fmt: skip
    assert _judge(*lines)[0].value("num_gpu_blocks") == 215


def test_a_gpu_hang_without_any_error_line_fails() -> None:
    hang = "HW Exception by GPU node-1 (Agent handle: 0x55) reason :GPU Hang"
    _, report = _judge(PAGE.format(528), hang)
    assert report.checks[0].status == "failed"
    assert "GPU Hang" in report.checks[0].reason


def test_a_hybrid_that_is_too_large_for_its_cache_says_so() -> None:
    engine = f"{INFO}Initializing a V1 LLM engine (v0.18.1) with config: model='m', max_seq_len=262144, x=1"
    lines = [engine, PAGE.format(784), f"{INFO}GPU KV cache size: 27,440 tokens",
             f"{INFO}Maximum concurrency for 262,144 tokens per request: 0.42x", STARTED]  # fmt: skip
    text = " ".join(remarks(_judge(*lines)[0]))
    assert "one request of the longest context does not fit (0.42x)" in text
    assert "contradict: on hybrids the printed token count is a derived figure" in text


@pytest.mark.parametrize(
    "line",
    [
        f"{WARNING}FlashInfer is not available. Falling back to the PyTorch-native implementation of top-p & top-k sampling.",
        f"{WARNING}[ROCm] PyTorch's native GELU with tanh approximation is unstable. Falling back to GELU(approximate='none').",
        f"{INFO}Using FlashInfer CUTLASS Unquantized MoE backend out of potential backends: ['FlashInfer CUTLASS', 'TRITON'].",
        f"{INFO}Using Torch SDPA backend for ViT model.",
        f"{INFO}Using AttentionBackendEnum.FLASH_ATTN for MMEncoderAttention.",
        f"{WARNING}Falling back to Triton Attention backend for vit attention.",
        f"{WARNING}FlashInfer all-reduce has nothing to prepare; falling back to another all-reduce backend.",
        f"{INFO}No FlashInfer autotune cache entries found.Falling back to default tactics.",
        f"{WARNING}Encoder CUDA graph fallback to eager: no budget for 5 items",
    ],
)
def test_lines_that_look_like_fall_backs_of_attention(line: str) -> None:
    evidence, report = _judge(line, STARTED)
    assert (evidence.fallbacks, evidence.value("attention_backend")) == ((), None)
    assert report.passed
