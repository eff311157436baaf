"""``--fail-if "ttft_p50 slower than 3%"``: rules that decide the exit status of a comparison."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from hwtune.domain.bench import Comparison, TierResult
from hwtune.domain.bench_metrics import LATENCIES, METRICS, Metric
from hwtune.domain.errors import UsageError
from hwtune.domain.quantiles import SHARES

GRAMMAR: Final = "METRIC[_p50|_p90|_p95|_p99] slower|maybe slower|not faster than N% [in TIER]"
_RULE = re.compile(
    r"(?P<what>[a-z0-9_]+) +(?P<condition>slower|maybe slower|not faster) +than"
    r" +(?P<percent>\d+(?:\.\d+)?) *%(?: +in +(?P<tier>\S+))?",
    re.IGNORECASE,
)
_LATENCY_NAMES = frozenset(metric.name for metric in LATENCIES)

Condition = Literal["slower", "maybe slower", "not faster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One condition under which a comparison fails."""

    text: str
    metric: Metric
    statistic: str | None
    """A quantile of a latency; None: what the verdict is about (block means, or rates)."""
    condition: Condition
    """``slower``: shown to be slower than the limit. ``maybe slower``: not shown to be no slower.
    ``not faster``: not shown to be faster by the limit."""
    limit: float
    """As a share. A latency is slower by x at 1 + x of the baseline, a rate at 1 / (1 + x)."""
    tier: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a rule says of one tier."""

    rule: Rule
    tier: str
    state: Literal["passed", "failed", "undecided"]
    evidence: str


def parse_rule(text: str) -> Rule:
    """One rule.

    Raises:
        UsageError: not of the grammar, or of a metric that does not exist.
    """
    match = _RULE.fullmatch(text.strip())
    if match is None:
        message = f"--fail-if {text!r}: expected {GRAMMAR}"
        raise UsageError(message)
    metric, statistic = _metric(text, match["what"].lower())
    condition: Condition = match["condition"].lower()  # type: ignore[assignment]
    return Rule(
        text=" ".join(text.split()),
        metric=metric,
        statistic=statistic,
        condition=condition,
        limit=float(match["percent"]) / 100.0,
        tier=match["tier"],
    )


def _metric(text: str, what: str) -> tuple[Metric, str | None]:
    names = {metric.name: metric for metric in METRICS}
    if what in names:
        return names[what], None
    name, _, statistic = what.rpartition("_")
    if name in _LATENCY_NAMES and statistic in (*SHARES, "mean"):
        return names[name], None if statistic == "mean" else statistic
    message = f"--fail-if {text!r}: no metric {what}; there are {', '.join(names)}"
    raise UsageError(message)


def check_rules(rules: Iterable[Rule], tiers: Sequence[str], metrics: Sequence[str]) -> None:
    """Refuses a rule that could never be judged.

    Raises:
        UsageError: a tier or metric that this run does not have.
    """
    for rule in rules:
        if rule.tier is not None and rule.tier not in tiers:
            message = f"--fail-if {rule.text!r}: no tier {rule.tier}; there are {', '.join(tiers)}"
            raise UsageError(message)
        if rule.metric.name not in metrics:
            message = (
                f"--fail-if {rule.text!r}: {rule.metric.name} is not measured here, but"
                f" {', '.join(metrics)}"
            )
            raise UsageError(message)


def judged_by(rules: Iterable[Rule]) -> tuple[tuple[str, str], ...]:
    """(metric, quantile) pairs whose ratio the rules need."""
    return tuple((rule.metric.name, rule.statistic) for rule in rules if rule.statistic is not None)


def outcomes(rules: Sequence[Rule], comparison: Comparison) -> tuple[Outcome, ...]:
    """Every rule in every tier it speaks of."""
    return tuple(
        _outcome(rule, tier)
        for rule in rules
        for tier in comparison.tiers
        if rule.tier in (None, tier.tier)
    )


def _outcome(rule: Rule, tier: TierResult) -> Outcome:
    ratio, interval, reason = _found(rule, tier)
    if ratio is None:
        return Outcome(rule=rule, tier=tier.tier, state="failed", evidence=reason)
    if interval is None or _overruled(rule, tier):
        state = "undecided" if rule.condition == "slower" else "failed"
        evidence = f"too few blocks for an interval: {reason}" if interval is None else reason
        return Outcome(rule=rule, tier=tier.tier, state=state, evidence=evidence)  # type: ignore[arg-type]
    worst, best = _slowdowns(rule.metric, interval)
    shown = f"change [{(interval[0] - 1) * 100:+.1f}, {(interval[1] - 1) * 100:+.1f}] %"
    return Outcome(
        rule=rule,
        tier=tier.tier,
        state=_state(rule, worst, best),
        evidence=shown,
    )


def _overruled(rule: Rule, tier: TierResult) -> bool:
    """Whether a drift or the noise floor explains a change that its interval alone would show."""
    for result in tier.metrics:
        if result.metric.name == rule.metric.name and result.interval is not None:
            low, high = result.interval
            return result.verdict.kind == "inconclusive" and (low > 1.0 or high < 1.0)
    return False


def _slowdowns(metric: Metric, interval: tuple[float, float]) -> tuple[float, float]:
    """The most and the least by which the candidate may be slower, as factors above 1."""
    if metric.better == "lower":
        return interval[1], interval[0]
    return 1.0 / interval[0], 1.0 / interval[1]


def _state(rule: Rule, worst: float, best: float) -> Literal["passed", "failed", "undecided"]:
    limit = 1.0 + rule.limit
    if rule.condition == "maybe slower":
        return "failed" if worst > limit else "passed"
    if rule.condition == "not faster":
        return "passed" if worst <= 1.0 / limit else "failed"
    if best > limit:
        return "failed"
    return "passed" if worst <= limit else "undecided"


def _found(rule: Rule, tier: TierResult) -> tuple[float | None, tuple[float, float] | None, str]:
    """Ratio, interval, and why one of them is missing."""
    result = next((r for r in tier.metrics if r.metric.name == rule.metric.name), None)
    if result is None:
        return None, None, f"{rule.metric.name} was not measured"
    if result.verdict.kind == "not comparable" or rule.statistic is None:
        ratio = None if result.verdict.kind == "not comparable" else result.ratio
        return ratio, result.interval, result.verdict.text
    for quantile in tier.quantiles:
        if (quantile.metric.name, quantile.statistic) == (rule.metric.name, rule.statistic):
            return quantile.ratio, quantile.interval, result.verdict.text
    return None, None, "nothing was measured"
