"""Records in, verdicts out; every trap is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from hwtune.domain.bench import ARMS, ArmProof, Comparison, RequestRecord
from hwtune.domain.bench_metrics import Goal
from hwtune.domain.compare import compare
from hwtune.domain.outputs import is_degenerate, output_gates
from hwtune.domain.validity import marker_gates
from hwtune.domain.workload import Design, Tier, prompts_in_pair

TIER = Tier(name="1-2K", least_tokens=1024, most_tokens=2048)
DESIGN = Design(
    model="m",
    profile="cpu",
    flags=(),
    mode="concurrent servers",
    vocab_size=1000,
    tiers=(TIER,),
    pairs=10,
    prompts_per_tier=20,
    output_tokens=16,
    concurrency=1,
)
Change = Callable[[RequestRecord], RequestRecord]


def _records(
    factor: float = 1.0, noise: float = 0.01, drift: float = 0.0, change: Change = lambda r: r
) -> list[RequestRecord]:
    """A run whose candidate takes ``factor`` times as long; ``drift`` per request in both arms."""
    rng = random.Random(3)
    records: list[RequestRecord] = []
    now = 0.0
    for pair in range(DESIGN.pairs):
        order = ARMS if pair % 2 else tuple(reversed(ARMS))
        for arm in order:
            for prompt in range(prompts_in_pair(DESIGN, pair)):
                slow = (factor if arm == "candidate" else 1.0) * (1 + drift * len(records))
                ttft = 0.1 * slow * rng.lognormvariate(0, noise)
                e2el = ttft + 0.15 * slow * rng.lognormvariate(0, noise)
                text = f"answer {prompt} of {pair}"
                record = RequestRecord(
                    arm=arm,
                    phase="measured",
                    tier=TIER.name,
                    pair=pair,
                    prompt=prompt,
                    prompt_id=f"{pair}/{prompt}",
                    started_unix_s=now,
                    ended_unix_s=now + e2el,
                    ttft_s=ttft,
                    e2el_s=e2el,
                    chunk_times_s=(ttft, e2el),
                    prompt_tokens=1500 + prompt,
                    output_tokens=16,
                    text=text,
                    text_sha256=text,
                    finish_reason="length",
                )
                now += e2el
                records.append(change(record))
    return records


def _kinds(comparison: Comparison) -> set[str]:
    return {result.verdict.kind for result in comparison.tiers[0].metrics}


def _candidate(**fields: object) -> Change:
    return lambda r: replace(r, **fields) if r.arm == "candidate" else r  # type: ignore[arg-type]


@pytest.mark.parametrize(("factor", "kind"), [(0.9, "faster"), (1.1, "slower"), (1.0, "same")])
def test_a_known_factor_gets_its_verdict_in_every_metric(factor: float, kind: str) -> None:
    comparison = compare(DESIGN, _records(factor), ())
    assert _kinds(comparison) == {kind}
    assert comparison.answer_is_no == (kind == "slower")
    for result in comparison.tiers[0].metrics:
        expected = factor if result.metric.better == "lower" else 1 / factor
        assert result.ratio == pytest.approx(expected, rel=0.01)
        assert result.interval is not None and result.ratio is not None
        assert result.interval[0] < result.ratio < result.interval[1]


def test_a_linear_drift_of_both_arms_is_not_a_difference() -> None:
    comparison = compare(DESIGN, _records(noise=0.002, drift=0.01), ())
    assert "faster" not in _kinds(comparison) and "slower" not in _kinds(comparison)


def test_noise_is_inconclusive_and_says_how_many_blocks_would_decide() -> None:
    comparison = compare(DESIGN, _records(0.97, noise=0.3), ())
    result = comparison.tiers[0].metrics[0]
    assert result.verdict.kind == "inconclusive"
    assert result.more_blocks is not None and result.more_blocks >= 1
    assert f"about {result.more_blocks} more blocks" in result.verdict.text
    assert not comparison.answer_is_no


def test_too_few_blocks_get_no_verdict_however_clear_they_look() -> None:
    few = [record for record in _records(0.5) if record.pair < 4]
    result = compare(DESIGN, few, ()).tiers[0].metrics[0]
    assert (result.verdict.kind, result.interval, result.more_blocks) == ("inconclusive", None, 2)
    assert "needs 6 blocks" in result.verdict.text


_SENTENCE = "The quick brown fox jumps over the lazy dog, and nine wizards box with jugs of liquor."


def _fail_one(record: RequestRecord) -> RequestRecord:
    if (record.arm, record.pair, record.prompt) != ("candidate", 3, 0):
        return record
    return replace(record, failure="http status", detail="500", ttft_s=None, e2el_s=None)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_fail_one, "1 of 40 requests failed: 1 x candidate: http status"),
        (_candidate(prompt_tokens=9), "input tokens differ in 20 of 20"),
        (_candidate(output_tokens=12), "output tokens differ in 20 of 20"),
        (lambda r: replace(r, output_tokens=3), "do not have the 16 tokens asked for"),
        (_candidate(text="!!!!!!!!!!!!!!!!", text_sha256="x"), "candidate 20 of 20"),
        (_candidate(text="", text_sha256="x"), "degenerate"),
        (_candidate(prompt_tokens=None), "20 answers come without a number of input tokens"),
        (lambda r: replace(r, prompt_tokens=None), "40 answers come without a number"),
        (_candidate(ttft_s=None), "20 of 40 records are damaged: ttft_s is None"),
        (_candidate(e2el_s=float("nan")), "e2el_s is nan"),
        (_candidate(ttft_s=0.0), "ttft_s is 0.0"),
        (_candidate(chunk_times_s=(0.1, -0.1)), "chunk_times_s[1] is -0.1"),
        (_candidate(prompt_id="other"), "20 of 20 prompts differ"),
        (
            _candidate(e2el_s=0.1, ttft_s=0.1, chunk_times_s=(0.1,)),
            "answers streamed: candidate: 20 of 20 answers came, most of them, at once",
        ),
        (
            _candidate(chunk_times_s=(0.1, 0.1, 0.2), chunk_tokens=(1, 12, 3)),
            "answers streamed: candidate: 20 of 20",
        ),
        (
            lambda r: replace(r, text=_SENTENCE[: 80 if r.arm == "baseline" else 50]),
            "text as long as its tokens: candidate / baseline 0.63 in characters",
        ),
    ],
)
def test_a_red_gate_prints_no_speed_up(change: Change, reason: str) -> None:
    comparison = compare(DESIGN, _records(0.5, change=change), ())
    assert _kinds(comparison) == {"not comparable"}
    assert comparison.answer_is_no
    for result in comparison.tiers[0].metrics:
        assert result.ratio is None and result.interval is None and result.change_pct is None
        assert reason in result.verdict.text


def test_a_share_of_broken_answers_below_a_tenth_is_found_where_it_is_no_chance() -> None:
    sane = [(_SENTENCE, _SENTENCE)] * 95
    both = [("!" * 40, "?" * 40)]

    def state(candidate_alone: int, baseline_alone: int) -> str:
        alone = [(_SENTENCE, "!" * 60)] * candidate_alone + [("!" * 60, _SENTENCE)] * baseline_alone
        return output_gates([*sane, *both, *alone])[0].state

    assert [state(6, 0), state(7, 0), state(7, 2)] == ["passed", "failed", "passed"]


def test_a_failed_marker_voids_every_tier() -> None:
    proofs = [
        ArmProof(arm="baseline", passed=True, summary="fine"),
        ArmProof(arm="candidate", passed=False, summary="page 784, planned 832"),
    ]
    comparison = compare(DESIGN, _records(0.5), marker_gates(proofs))
    assert _kinds(comparison) == {"not comparable"}
    assert "page 784, planned 832" in comparison.tiers[0].metrics[0].verdict.text


def test_the_same_degenerate_text_in_both_arms_is_the_models_and_is_said() -> None:
    loop = "!" * 32
    records = _records(1.0, change=lambda r: replace(r, text=loop, text_sha256=loop))
    comparison = compare(DESIGN, records, ())
    assert _kinds(comparison) == {"same"}
    evidence = next(g.evidence for g in comparison.tiers[0].gates if g.name == "sane output")
    assert "same text in both arms" in evidence


def test_text_agreement_is_shown_and_is_not_a_gate() -> None:
    records = _records(change=_candidate(text="answer apart", text_sha256="b"))
    comparison = compare(DESIGN, records, ())
    assert comparison.tiers[0].text_agreement == 0.0
    assert not comparison.red_gates


def test_only_the_last_attempt_of_a_pair_counts() -> None:
    first = _records(0.5)
    stopped = [replace(r, failure="connect error") for r in first if r.pair == 2][:3]
    again = [replace(r, attempt=1) for r in first if r.pair == 2]
    comparison = compare(DESIGN, [r for r in first if r.pair != 2] + stopped + again, ())
    assert _kinds(comparison) == {"faster"}
    assert comparison.tiers[0].pairs_done == 10


def test_a_half_measured_pair_is_left_out() -> None:
    records = [r for r in _records() if not (r.pair == 9 and r.arm == "candidate")]
    assert compare(DESIGN, records, ()).tiers[0].pairs_done == 9


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  \n",
        "!" * 64,
        "ha ha " * 20,
        "Hello there" + "!" * 60,
        "00" * 40,
        "abcdefghijklmnopq" * 8,
        "!" * 200 + " x",
        "A sentence of forty-two characters, again. " * 5 + "A sen",
    ],
)
def test_degenerate_output_is_recognised(text: str) -> None:
    assert is_degenerate(text)


@pytest.mark.parametrize("text", ["The answer is 42.", "no", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10"])
def test_plain_output_is_not_degenerate(text: str) -> None:
    assert not is_degenerate(text)


def _with_noise(aa_factor: float, factor: float) -> Comparison:
    noise = [replace(record, phase="a/a") for record in _records(aa_factor)]
    design = replace(DESIGN, aa_pairs=DESIGN.pairs)
    return compare(design, noise + _records(factor), ())


def test_a_quiet_machine_lets_a_real_difference_through() -> None:
    comparison = _with_noise(1.0, 0.9)
    assert _kinds(comparison) == {"faster"}
    assert {result.verdict.kind for result in comparison.tiers[0].noise} == {"same"}


def test_a_baseline_that_differs_from_itself_voids_the_tier() -> None:
    comparison = _with_noise(1.2, 0.9)
    assert _kinds(comparison) == {"not comparable"}
    assert "A/A differs in" in comparison.tiers[0].metrics[0].verdict.text


def test_a_change_within_the_noise_of_the_baseline_decides_nothing() -> None:
    # Against itself the baseline wavers by some per cent, without a significant difference.
    noise = [replace(r, phase="a/a") for r in _records(1.2, noise=0.3)]
    design = replace(DESIGN, aa_pairs=DESIGN.pairs)
    comparison = compare(design, noise + _records(0.97, noise=0.001), ())
    shown = {result.metric.name: result for result in comparison.tiers[0].noise}
    wavering = abs((shown["e2el"].ratio or 1.0) - 1.0)
    assert shown["e2el"].verdict.kind == "inconclusive" and wavering > 0.03
    verdict = {r.metric.name: r.verdict for r in comparison.tiers[0].metrics}["e2el"]
    assert verdict.kind == "inconclusive"
    assert "noise of the baseline against itself" in verdict.text


def test_a_client_that_read_late_is_no_instrument() -> None:
    late = _records(0.5, change=lambda r: replace(r, client_late_s=0.1))
    comparison = compare(DESIGN, late, ())
    assert _kinds(comparison) == {"not comparable"}
    assert "the client is saturated" in comparison.tiers[0].metrics[0].verdict.text
    sent = _records(0.5, change=lambda r: replace(r, late_s=0.1))
    comparison = compare(replace(DESIGN, arrival="poisson", rate_per_s=1.0), sent, ())
    assert "sent late in 40 of 40" in comparison.tiers[0].metrics[0].verdict.text


def test_an_open_loop_shows_latency_from_the_schedule_beside_the_other() -> None:
    late = _records(change=lambda r: replace(r, late_s=0.004))
    design = replace(DESIGN, arrival="constant", rate_per_s=1.0)
    shown = {r.metric.name: r for r in compare(design, late, ()).tiers[0].metrics}
    assert (shown["ttft_due"].baseline or 0) - (shown["ttft"].baseline or 0) == pytest.approx(4.0)
    closed = {r.metric.name for r in compare(DESIGN, late, ()).tiers[0].metrics}
    assert "ttft_due" not in closed and "goodput" not in closed


def test_several_tokens_in_a_chunk_do_not_stretch_itl() -> None:
    def chunked(record: RequestRecord) -> RequestRecord:
        ttft, e2el = record.ttft_s or 0.0, record.e2el_s or 0.0
        times = (ttft, (ttft + e2el) / 2, e2el)
        return replace(record, chunk_times_s=times, chunk_tokens=(6, 5, 5))

    shown = {
        r.metric.name: r for r in compare(DESIGN, _records(change=chunked), ()).tiers[0].metrics
    }
    # 150 ms after the first token in two chunks of five: 15 ms a token, not 75 ms a chunk.
    assert shown["itl"].baseline == pytest.approx(15.0, rel=0.02)
    assert shown["tpot"].baseline == pytest.approx(10.0, rel=0.02)


def test_goodput_counts_the_requests_that_meet_every_goal() -> None:
    goals = (Goal(metric="ttft", most_ms=150.0), Goal(metric="e2el", most_ms=500.0))
    slow = _records(change=lambda r: replace(r, ttft_s=0.2) if r.arm == "candidate" else r)
    shown = {
        r.metric.name: r for r in compare(replace(DESIGN, goals=goals), slow, ()).tiers[0].metrics
    }
    assert shown["goodput"].baseline == pytest.approx(shown["request_throughput"].baseline or 0)
    assert shown["goodput"].verdict.kind == "slower"
    assert shown["request_throughput"].verdict.kind == "same"


def test_drift_is_shown_and_absent_without_one() -> None:
    drifting = compare(DESIGN, _records(noise=0.002, drift=0.01), ()).tiers[0]
    assert any(line.startswith("drift: baseline E2EL +") for line in drifting.drift)
    assert compare(DESIGN, _records(noise=0.02), ()).tiers[0].drift == ()


def _symbols(record: RequestRecord) -> RequestRecord:
    if record.arm == "baseline":
        return record
    rng = random.Random(record.pair * 100 + record.prompt)
    text = "".join(chr(rng.randrange(33, 127)) for _ in range(200))
    return replace(record, text=text, text_sha256=text)


def test_answers_with_nothing_in_common_are_not_comparable() -> None:
    comparison = compare(DESIGN, _records(0.5, change=_symbols), ())
    assert _kinds(comparison) == {"not comparable"}
    assert "outputs have nothing in common" in comparison.tiers[0].metrics[0].verdict.text


def test_gates_over_nothing_are_not_checked() -> None:
    tier = compare(replace(DESIGN, aa_pairs=6), [], ()).tiers[0]
    assert {gate.state for gate in tier.gates} == {"not checked"}


def test_an_a_a_phase_below_six_pairs_is_not_checked() -> None:
    noise = [replace(r, phase="a/a") for r in _records() if r.pair < 5]
    tier = compare(replace(DESIGN, aa_pairs=5), noise + _records(), ()).tiers[0]
    (state,) = [gate.state for gate in tier.gates if gate.name == "baseline equals itself"]
    assert state == "not checked"
