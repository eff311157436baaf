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
