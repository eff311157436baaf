"""Rules of --fail-if: their grammar, and what they say of an interval."""

from __future__ import annotations

import random
from xml.etree import ElementTree

import pytest

from hwtune.domain.bench import Comparison, Gate, MetricResult, TierResult, Verdict
from hwtune.domain.bench_metrics import OUTPUT_THROUGHPUT, TTFT, Metric
from hwtune.domain.errors import UsageError
from hwtune.domain.fail_if import check_rules, outcomes, parse_rule
from hwtune.domain.quantiles import quantile_results
from hwtune.report.bench_junit import comparison_to_junit


def _comparison(metric: Metric, interval: tuple[float, float] | None, kind: str = "") -> Comparison:
    if not kind:
        decided = interval is not None and (interval[0] > 1.0 or interval[1] < 1.0)
        kind = "slower" if decided else "inconclusive"
    ratio = None if kind == "not comparable" else 1.0
    result = MetricResult(
        metric=metric,
        blocks=8,
        baseline=1.0,
        candidate=1.0,
        ratio=ratio,
        interval=interval,
        verdict=Verdict(kind=kind, text="as told"),  # type: ignore[arg-type]
    )
    tier = TierResult(
        tier="4-8K",
        pairs_done=8,
        pairs_planned=8,
        prompts=8,
        prompt_tokens=None,
        text_agreement=None,
        gates=(Gate(name="g", state="passed", evidence="e"),),
        metrics=(result,),
    )
    return Comparison(
        model="m", confidence=0.95, margin=0.02, conditions={}, gates=(), tiers=(tier,)
    )


@pytest.mark.parametrize(
    ("condition", "interval", "state"),
    [
        ("slower", (1.04, 1.06), "failed"),
        ("slower", (1.01, 1.06), "undecided"),
        ("slower", (0.9, 1.029), "passed"),
        ("slower", None, "undecided"),
        ("maybe slower", (1.01, 1.06), "failed"),
        ("maybe slower", (0.9, 1.029), "passed"),
        ("maybe slower", None, "failed"),
        ("not faster", (0.90, 0.96), "passed"),
        ("not faster", (0.90, 0.99), "failed"),
        ("not faster", (1.01, 1.02), "failed"),
    ],
)
def test_a_rule_asks_the_interval_not_the_estimate(
    condition: str, interval: tuple[float, float] | None, state: str
) -> None:
    rule = parse_rule(f"ttft {condition} than 3%")
    (outcome,) = outcomes([rule], _comparison(TTFT, interval))
    assert outcome.state == state
    # A rate is slower where it is lower.
    rule = parse_rule(f"output_throughput {condition} than 3 %")
    swapped = None if interval is None else (1 / interval[1], 1 / interval[0])
    (outcome,) = outcomes([rule], _comparison(OUTPUT_THROUGHPUT, swapped))
    assert outcome.state == state


@pytest.mark.parametrize(
    ("rule", "interval", "state"),
    [
        ("ttft slower than 3%", (1.04, 1.06), "undecided"),
        ("ttft maybe slower than 3%", (1.004, 1.006), "failed"),
        ("ttft not faster than 3%", (0.90, 0.92), "failed"),
    ],
)
def test_a_change_that_drift_or_noise_explains_is_not_shown(
    rule: str, interval: tuple[float, float], state: str
) -> None:
    """The verdict is inconclusive although the interval lies on one side: something overruled it."""
    (outcome,) = outcomes([parse_rule(rule)], _comparison(TTFT, interval, "inconclusive"))
    assert (outcome.state, outcome.evidence) == (state, "as told")


def test_what_is_not_comparable_fails_every_rule() -> None:
    rules = [parse_rule("ttft slower than 50%"), parse_rule("ttft_p50 slower than 50%")]
    comparison = _comparison(TTFT, None, "not comparable")
    assert [outcome.state for outcome in outcomes(rules, comparison)] == ["failed", "failed"]


def test_a_rule_may_speak_of_one_tier() -> None:
    rule = parse_rule("TTFT_p99 Slower than 2.5% in 4-8K")
    assert (rule.statistic, rule.tier, rule.limit) == ("p99", "4-8K", 0.025)
    assert outcomes([parse_rule("ttft slower than 3% in 8-16K")], _comparison(TTFT, None)) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected METRIC"),
        ("ttft slower", "expected METRIC"),
        ("ttft slower than 3", "expected METRIC"),
        ("ttft faster than 3%", "expected METRIC"),
        ("ttft slower than -3%", "expected METRIC"),
        ("speed slower than 3%", "no metric speed; there are ttft"),
        ("ttft_p42 slower than 3%", "no metric ttft_p42"),
        ("goodput_p50 slower than 3%", "no metric goodput_p50"),
    ],
)
def test_what_is_no_rule_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_rule(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [("ttft slower than 1% in x", "no tier x"), ("goodput slower than 1%", "not measured here")],
)
def test_a_rule_that_could_never_be_judged_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_rules([parse_rule(text)], ["4-8K"], ["ttft"])


def test_the_interval_of_a_quantile_covers_a_known_ratio_and_not_one() -> None:
    rng = random.Random(2)
    units = [
        (
            [rng.lognormvariate(0, 0.05) for _ in range(4)],
            [1.3 * rng.lognormvariate(0, 0.05) for _ in range(4)],
        )
        for _ in range(12)
    ]
    found = {r.statistic: r for r in quantile_results(TTFT, units, level=0.95, judged=["p50"])}
    median = found["p50"]
    assert median.interval is not None and median.interval[0] < 1.3 < median.interval[1]
    assert median.interval[0] > 1.1 and median.ratio == pytest.approx(1.3, rel=0.05)
    assert found["p99"].ratio is None and found["p99"].candidate > found["p99"].baseline
    assert quantile_results(TTFT, units[:5], level=0.95, judged=["p50"])[0].interval is None
    assert quantile_results(TTFT, [], level=0.95) == ()


def test_junit_has_a_case_for_every_gate_verdict_and_rule() -> None:
    comparison = _comparison(TTFT, (1.04, 1.06), "slower")
    root = ElementTree.fromstring(comparison_to_junit(comparison))
    assert root.attrib["tests"] == "2" and root.attrib["failures"] == "1"
    found = outcomes(
        [parse_rule("ttft slower than 3%"), parse_rule("ttft slower than 9%")], comparison
    )
    root = ElementTree.fromstring(comparison_to_junit(comparison, found))
    failed = [case.attrib["name"] for case in root if case.find("failure") is not None]
    assert failed == ["ttft slower than 3%"], "with rules, the rules decide"
    assert root.attrib["tests"] == "4"
