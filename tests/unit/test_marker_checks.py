"""Checks: what passes, fails, or is skipped, and why."""

from __future__ import annotations

import dataclasses

import pytest

from hwtune.domain.answers import answers, remarks
from hwtune.domain.check_kernels import is_call_reason
from hwtune.domain.check_records import Cause, Check, MarkerReport
from hwtune.domain.collecting import EvidenceCollector
from hwtune.domain.errors import UsageError
from hwtune.domain.evidence import Evidence, KernelCount, KernelOutcome, Place, RunStatus
from hwtune.domain.expectations import NOTHING_EXPECTED, parse_expectations
from hwtune.domain.kernel import CallShape, KernelConditions, call_refusal
from hwtune.domain.launch import Expectation, LaunchPlan
from hwtune.domain.markers import check
from hwtune.io.marker_sets import load_diagnoses, load_markers

WORKER = "(Worker pid=9) INFO 11-30 06:51:47 [backend.py:40] "
SERVER = "(APIServer pid=1) INFO 11-30 06:51:30 [api_utils.py:286] "
STARTED = "(APIServer pid=1) INFO:     Application startup complete."
PAGE = (
    WORKER
    + "Setting attention block size to {} tokens to ensure that attention page size is >= mamba page size."
)
PADDING = (
    WORKER
    + "Padding mamba page size by {}% to ensure that mamba page size and attention page size are exactly equal."
)
REGISTERED = f"{WORKER}hwtune[a1] registered backend=CPU_ATTN class=X alignment=64 kernels=k1"
BOUND = f"{WORKER}hwtune[a1] layer bound name=l.3 block_size=832 takes=k1 refuses=-"
PLACE = Place(file="status.json", line=None, process=None, time=None, text="state=died")


def _evidence(*lines: str, counts: tuple[KernelCount, ...] = (), **known: object) -> Evidence:
    collector = EvidenceCollector(load_markers(), nonce="a1")
    collector.feed("x.log", enumerate(lines, start=1))
    evidence = collector.evidence(counts=counts, has_counters=bool(counts))
    return dataclasses.replace(evidence, **known)  # type: ignore[arg-type]


def _report(evidence: Evidence, *items: str, hits: bool = False) -> MarkerReport:
    expected = parse_expectations(items, base=None, facts=load_markers().facts)
    return check(
        evidence,
        expected.expect,
        require_kernel_hits=hits,
        facts=expected.facts,
        diagnoses=load_diagnoses(),
    )


def _check(report: MarkerReport, name: str) -> Check:
    return next(item for item in report.checks if item.name == name)


def _count(kernel: str, outcome: KernelOutcome, calls: int, reason: str = "") -> KernelCount:
    return KernelCount(
        process=9, nonce="a1", kernel=kernel, outcome=outcome, reason=reason, calls=calls
    )


def _plan(**changes: object) -> LaunchPlan:
    plan = LaunchPlan(
        run_id="r", nonce="a1", arm="candidate", model="m", served_model_name="m", profile="cpu",
        device="cpu", vllm_version="0.32.0", backend_to_extend="CPU_ATTN", alignment_tokens=64,
        kernels=(), argv=("vllm",), expect=NOTHING_EXPECTED,
    )  # fmt: skip
    return dataclasses.replace(plan, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lines", "item", "name", "status"),
    [
        ([PAGE.format(832)], "block_size=832", "page", "passed"),
        ([PAGE.format(784)], "block_size=832", "page", "failed"),
        ([], "block_size=832", "page", "failed"),
        ([PADDING.format("6.26")], "padding_pct=6.26", "padding", "passed"),
        ([PADDING.format("14.43")], "padding_pct=6.26", "padding", "failed"),
        ([PAGE.format(1072)], "padding_pct=0", "padding", "passed"),
        ([PAGE.format(1072)], "padding_pct=1", "padding", "skipped"),
        ([], "prefix_caching=off", "prefix_caching", "skipped"),
        ([f"{SERVER}non-default args: {{'enable_prefix_caching': True}}"], "prefix_caching=off",
         "prefix_caching", "failed"),
        ([f"{WORKER}Using Flash Attention backend on V1 engine."], "backend=FLASH_ATTN", "backend",
         "passed"),
        ([f"{WORKER}Using Flash Attention backend on V1 engine."], "backend=TRITON_ATTN", "backend",
         "failed"),
        ([f"{SERVER}vLLM API server version 0.32.0"], "vllm_version=0.32.0", "vllm_version",
         "passed"),
        ([f"{SERVER}vLLM API server version 0.32.0"], "vllm_version=0.18.1", "vllm_version",
         "failed"),
        ([], "vllm_version=0.18.1", "vllm_version", "failed"),
    ],
)  # fmt: skip
def test_expectations(lines: list[str], item: str, name: str, status: str) -> None:
    assert _check(_report(_evidence(*lines), item), name).status == status


TRITON = f"{WORKER}Using TRITON_ATTN attention backend out of potential backends: ['TRITON_ATTN']."
FLASH = f"{WORKER}Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN']."
CUSTOM = f"{WORKER}Using AttentionBackendEnum.CUSTOM backend."
CUSTOM_REGISTERED = REGISTERED.replace("CPU_ATTN", "CUSTOM")
OBSERVING = f"{WORKER}hwtune[a1] observing backend=TRITON_ATTN"


@pytest.mark.parametrize(
    ("lines", "wanted", "status", "reason"),
    [
        ([REGISTERED], "CPU_ATTN", "skipped", "registered, no layer bound yet"),
        ([OBSERVING], "TRITON_ATTN", "skipped", "observing, no layer bound yet"),
        ([REGISTERED, BOUND], "CPU_ATTN", "passed", ""),
        ([CUSTOM_REGISTERED, BOUND], "CPU_ATTN", "failed", "the plugin bound CUSTOM"),
        ([OBSERVING, TRITON], "TRITON_ATTN", "passed", ""),
        ([OBSERVING, BOUND, FLASH], "TRITON_ATTN", "failed", "seen FLASH_ATTN"),
        ([CUSTOM_REGISTERED, FLASH], "CUSTOM", "failed", "seen FLASH_ATTN"),
        ([CUSTOM_REGISTERED, CUSTOM], "CUSTOM", "passed", ""),
        ([CUSTOM_REGISTERED, BOUND, FLASH, CUSTOM], "CUSTOM", "passed", ""),
        ([CUSTOM_REGISTERED, FLASH, CUSTOM], "CUSTOM", "failed", "seen FLASH_ATTN"),
    ],
)
def test_a_registered_backend_is_not_one_in_use(
    lines: list[str], wanted: str, status: str, reason: str
) -> None:
    found = _check(_report(_evidence(*lines), f"backend={wanted}"), "backend")
    assert found.status == status
    assert reason in found.reason


def test_counted_calls_of_this_run_show_the_backend_in_use() -> None:
    counts = (_count("k1", "fallback", 2, "query shorter than 64"),)
    report = _report(_evidence(REGISTERED, counts=counts), "backend=CPU_ATTN")
    assert _check(report, "backend").status == "passed"


def test_the_plugins_view_of_the_page_serves_when_vllm_prints_none() -> None:
    bound = f"{WORKER}hwtune[a1] layer bound name=l.3 block_size=832 takes=k1 refuses=-"
    assert (
        _check(_report(_evidence(REGISTERED, bound), "block_size=832"), "page").status == "passed"
    )


def test_workers_that_disagree_fail() -> None:
    other = PAGE.format(784).replace("pid=9", "pid=10")
    report = _report(_evidence(PAGE.format(832), other))
    assert _check(report, "agreement").status == "failed"


def test_one_worker_that_raises_its_page_does_not_disagree_with_itself() -> None:
    report = _report(_evidence(PAGE.format(784), PAGE.format(832)))
    assert "agreement" not in {item.name for item in report.checks}


# start-up


@pytest.mark.parametrize(
    ("evidence", "status", "reason"),
    [
        (_evidence(STARTED), "passed", ""),
        (_evidence(f"{SERVER}a line"), "failed", "the log ends before start-up completed"),
        (_evidence("LLVM ERROR: x"), "failed", "x.log:1: LLVM ERROR: x"),
        (_evidence(f"{SERVER}x", status=RunStatus(state="ready", exit_code=None, reason=None,
                                                  place=PLACE)), "passed", ""),
        (_evidence(f"{SERVER}x", status=RunStatus(state="died", exit_code=-9, reason=None,
                                                  place=PLACE)), "failed", "exit code -9"),
        (_evidence(), "failed", "no log line at all"),
        (_evidence(f"{WORKER}init engine (profile, create kv cache, warmup model) took 4 s"),
         "skipped", "offline"),
    ],
)  # fmt: skip
def test_start_up(evidence: Evidence, status: str, reason: str) -> None:
    found = _check(_report(evidence), "startup")
    assert found.status == status
    assert reason in found.reason


def test_a_healthy_start_does_not_hide_a_later_death() -> None:
    report = _report(_evidence(STARTED, "HW Exception by GPU node-1 reason :GPU Hang"))
    assert _check(report, "startup").status == "passed"
    assert _check(report, "health").status == "failed"


# kernels


def test_registered_is_no_hit() -> None:
    report = _report(_evidence(STARTED, REGISTERED), "hits=k1", hits=True)
    assert _check(report, "plugin").status == "passed"
    found = _check(report, "kernel:k1")
    assert found.status == "failed"
    assert found.diagnosis[0].id == "marker_at_init_only"


@pytest.mark.parametrize(
    ("counts", "hits", "status", "text"),
    [
        ([_count("k1", "hit", 3)], True, "passed", "3 calls"),
        ([_count("k1", "hit", 0)], True, "failed", "no counted call"),
        ([_count("k1", "fallback", 2, "page 784")], True, "failed", "2 fell back: page 784"),
        ([_count("k1", "captured", 2)], True, "failed", "captured in a graph"),
        ([_count("k1", "replayed", 8)], True, "passed", "8 calls in replayed graphs"),
        ([_count("k2", "hit", 3)], True, "failed", "no counted call"),
        ([_count("k1", "fallback", 2, "page 784")], False, "skipped", "no counted call yet; 2 fell"),
        ([_count("k1", "fallback", 2, "query shorter than 64")], False, "skipped",
         "no matching request was served yet; 2 fell back: query shorter than 64"),
        ([_count("k1", "fallback", 2, "more than one sequence")], True, "failed",
         "no matching request was served; 2 fell back: more than one sequence"),
        ([_count("k2", "fallback", 2, "x")], False, "skipped", "no request served yet"),
    ],
)  # fmt: skip
def test_only_a_counted_call_is_a_hit(
    counts: list[KernelCount], hits: bool, status: str, text: str
) -> None:
    evidence = _evidence(STARTED, REGISTERED, counts=tuple(counts))
    found = _check(_report(evidence, "hits=k1", hits=hits), "kernel:k1")
    assert found.status == status
    assert found.expected == "at least one counted call"
    assert text in found.seen + found.reason


def test_a_first_hit_line_counts_when_there_are_no_counters() -> None:
    line = f"{WORKER}hwtune[a1] first hit kernel=k1 query=1 context=9 block_size=832"
    assert _report(_evidence(STARTED, REGISTERED, line), "hits=k1", hits=True).passed


@pytest.mark.parametrize("hits", [True, False])
def test_a_first_hit_line_whose_nonce_nobody_vouched_for_is_no_hit(hits: bool) -> None:
    line = f"{WORKER}hwtune[a1] first hit kernel=k1 query=1 context=9 block_size=832"
    collector = EvidenceCollector(load_markers())
    collector.feed("x.log", enumerate((STARTED, REGISTERED, BOUND, line), start=1))
    evidence = collector.evidence()
    report = _report(evidence, "hits=k1", "backend=CPU_ATTN", "block_size=832", hits=hits)
    found = _check(report, "kernel:k1")
    assert found.status == ("failed" if hits else "skipped")
    for text in (found.reason, *(_check(report, n).seen for n in ("plugin", "backend", "page"))):
        assert "nonce not verified; pass --nonce or --run-dir" in text
    assert any("nonce not verified" in text for text in remarks(evidence))


def test_a_first_hit_line_does_not_outweigh_counters() -> None:
    line = f"{WORKER}hwtune[a1] first hit kernel=k1 query=1 context=9 block_size=832"
    evidence = _evidence(STARTED, REGISTERED, line, counts=(_count("k1", "hit", 0),))
    assert not _report(evidence, "hits=k1", hits=True).passed


CALL = CallShape(num_sequences=1, num_tokens=64, max_query_len=64, context_len=1024)
WHEN = KernelConditions(min_query_len=64, max_query_len=512, min_context_len=1024)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_sequences": 2},
        {"num_tokens": 32, "max_query_len": 32},
        {"num_tokens": 1024, "max_query_len": 1024},
        {"num_tokens": 128},
        {"context_len": 64},
    ],
)
def test_what_another_request_would_change_is_told_from_what_the_layer_is(
    changes: dict[str, int],
) -> None:
    reason = call_refusal(WHEN, dataclasses.replace(CALL, **changes))  # type: ignore[arg-type]
    assert reason is not None
    assert is_call_reason(reason)
    assert not is_call_reason("page 784 not a multiple of 64")


def _causes(*counts: KernelCount, bound: str = BOUND) -> dict[str, Cause]:
    evidence = _evidence(STARTED, REGISTERED, bound, counts=counts)
    found = _check(_report(evidence, "hits=k1", hits=True), "kernel:k1")
    assert found.status == "failed"
    return {cause.id: cause for cause in found.diagnosis}


@pytest.mark.parametrize(
    ("reason", "named"),
    [
        ("query shorter than 64", "--max-num-batched-tokens"),
        ("query longer than 512", "--max-num-batched-tokens"),
        ("context shorter than 1024", "prompts were too short"),
        ("more than one sequence", "concurrency"),
        ("padded or mixed batch", "concurrency"),
    ],
)
def test_requests_that_miss_the_kernel_are_not_blamed_on_the_page(reason: str, named: str) -> None:
    causes = _causes(_count("k1", "fallback", 5, reason))
    first = next(iter(causes.values()))
    assert first.id == "request_misses_kernel"
    assert named in "; ".join(first.supports)
    assert "--max-num-batched-tokens" in first.next_step
    assert not {"no_matching_call", "kernel_refuses_page", "captured_only"} & set(causes)


@pytest.mark.parametrize("others", [(), (_count("k1", "fallback", 9, "more than one sequence"),)])
def test_a_layer_that_does_not_fit_is_no_matter_of_requests(
    others: tuple[KernelCount, ...],
) -> None:
    causes = _causes(_count("k1", "fallback", 5, "head size 80, not 64 or 128"), *others)
    assert next(iter(causes)) == "no_matching_call"
    assert "request_misses_kernel" not in causes


def test_a_kernel_that_was_only_captured_says_so() -> None:
    causes = _causes(_count("k1", "captured", 5))
    assert next(iter(causes)) == "captured_only"
    assert "no_matching_call" not in causes


def test_another_kernels_calls_explain_nothing_of_this_one() -> None:
    refuses_other = BOUND.replace("refuses=-", "refuses=k2:page 784 not a multiple of 64")
    others = (_count("k2", "fallback", 5, "page 784"), _count("k2", "captured", 5))
    assert set(_causes(*others, bound=refuses_other)) == {"marker_at_init_only"}


def test_a_page_in_a_plan_that_is_no_number_raises_nothing() -> None:
    odd = dataclasses.replace(NOTHING_EXPECTED, block_size="832")  # type: ignore[arg-type]
    report = check(
        _evidence(PAGE.format(832)), odd, require_kernel_hits=False, diagnoses=load_diagnoses()
    )
    assert _check(report, "page").status == "failed"


def test_a_fault_fails_even_when_requests_were_served() -> None:
    evidence = _evidence(STARTED, REGISTERED, counts=(_count("k1", "fault", 1, "RuntimeError: x"),))
    assert "RuntimeError: x" in _check(_report(evidence), "faults").reason


@pytest.mark.parametrize("outcome", ["hit", "captured", "replayed"])
def test_a_baseline_must_not_run_kernels(outcome: KernelOutcome) -> None:
    evidence = _evidence(STARTED, counts=(_count("k1", outcome, 3),), plan=_plan(arm="baseline"))
    check = _check(_report(evidence), "baseline")
    assert (check.status, check.reason) == ("failed", "k1 was called 3 times in the baseline arm")


def test_another_version_than_planned_is_a_cause() -> None:
    version = f"{SERVER}vLLM API server version 0.18.1"
    evidence = _evidence(version, REGISTERED, PAGE.format(784), plan=_plan())
    causes = [cause.id for cause in _check(_report(evidence, "block_size=832"), "page").diagnosis]
    assert "other_version" in causes


# the four questions, remarks, summary


def test_the_four_questions_of_the_page_that_seemed_ineffective() -> None:
    evidence = _evidence(
        STARTED, PAGE.format(784), counts=(_count("k1", "fallback", 7, "page 784"),)
    )
    report = _report(evidence, "block_size=832", "hits=k1", hits=True)
    found = {item.id: item.answer for item in answers(evidence, report)}
    assert found["layout"] == "no: planned 832, seen 784"
    assert "attention page 784" in found["block_size"]
    assert found["kernels"] == "k1: 0 hits, 7 fell back (page 784)"
    assert report.summary.startswith("FAIL: 2 passed, 2 failed; page:")


def test_prefix_caching_is_named_when_it_moved_the_page() -> None:
    mode = (
        f"{SERVER}Mamba cache mode is set to 'align' for Qwen3_5ForCausalLM by default when "
        "prefix caching is enabled"
    )
    evidence = _evidence(STARTED, mode, PAGE.format(1024))
    report = _report(evidence, "block_size=832", "prefix_caching=off")
    assert _check(report, "page").diagnosis[0].id == "prefix_caching_flipped"
    assert answers(evidence, report)[3].answer.startswith("likely: prefix caching on")


def test_contradicting_block_sizes_and_capacities_are_remarked() -> None:
    evidence = _evidence(
        f"{SERVER}Initializing a V1 LLM engine (v0.18.1) with config: model='m', max_seq_len=262144, x=1",
        PAGE.format(1600),
        f"{WORKER}kv lcm block sizes 8",
        f"{WORKER}GPU KV cache size: 27,440 tokens",
        f"{WORKER}Maximum concurrency for 262,144 tokens per request: 0.42x",
    )
    text = "\n".join(remarks(evidence))
    assert "1600 and scheduler block 8 are both true" in text
    assert "contradict" in text
    assert "does not fit" in text


def test_the_summary_of_a_good_run() -> None:
    report = _report(_evidence(STARTED, PAGE.format(832)), "block_size=832")
    assert report.summary == "PASS: 2 passed"


# --expect


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("block_size", "write key=value"),
        ("block_size=", "write key=value"),
        ("block_size=many", "positive number"),
        ("block_size=-64", "positive number"),
        ("block_size=٣", "positive number"),
        ("prefix_caching=maybe", "on or off"),
        ("padding_pct=nan", "percentage"),
        ("colour=red", "unknown key"),
        ("hits=,", "needs the name of a kernel"),
        ("hits= , ,", "needs the name of a kernel"),
        ("kernels=", "write key=value"),
    ],
)
def test_expectations_that_make_no_sense(item: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_expectations([item], base=None, facts=())


def test_expectations_add_to_the_plans() -> None:
    base: Expectation = dataclasses.replace(NOTHING_EXPECTED, block_size=832)
    expected = parse_expectations(["hits=a, b"], base=base, facts=())
    assert expected.expect == dataclasses.replace(base, kernels=("a", "b"))
    assert expected.hits_named
