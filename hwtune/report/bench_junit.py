"""A judged comparison as JUnit XML: gates, verdicts, and the rules of ``--fail-if``."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from hwtune.domain.bench import Comparison, Gate
from hwtune.domain.fail_if import Outcome
from hwtune.report.junit import clean


def comparison_to_junit(comparison: Comparison, outcomes: Sequence[Outcome] = ()) -> str:
    """One ``testsuite``: a case per gate, per verdict, and per rule and tier.

    With rules a slower metric is not by itself a failure: the rules decide.
    """
    cases = [*_gates(comparison), *_verdicts(comparison, bool(outcomes)), *map(_rule, outcomes)]
    counts = {tag: sum(case.find(tag) is not None for case in cases) for tag in _TAGS}
    suite = ElementTree.Element(
        "testsuite",
        name="hwtune ab-bench",
        tests=str(len(cases)),
        failures=str(counts["failure"]),
        errors="0",
        skipped=str(counts["skipped"]),
    )
    suite.extend(cases)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


_TAGS = ("failure", "skipped")


def _gates(comparison: Comparison) -> list[ElementTree.Element]:
    cases = [_gate("run", gate) for gate in comparison.gates]
    return cases + [_gate(tier.tier, gate) for tier in comparison.tiers for gate in tier.gates]


def _gate(where: str, gate: Gate) -> ElementTree.Element:
    tag = {"failed": "failure", "not checked": "skipped"}.get(gate.state, "")
    return _case(f"gates.{where}", gate.name, tag, gate.evidence)


def _verdicts(comparison: Comparison, ruled: bool) -> list[ElementTree.Element]:
    bad = {"not comparable"} if ruled else {"not comparable", "slower"}
    cases = []
    for tier in comparison.tiers:
        for result in tier.metrics:
            kind = result.verdict.kind
            tag = "failure" if kind in bad else "skipped" if kind == "inconclusive" else ""
            cases.append(
                _case(f"verdicts.{tier.tier}", result.metric.name, tag, result.verdict.text)
            )
    return cases


def _rule(outcome: Outcome) -> ElementTree.Element:
    tag = {"failed": "failure", "undecided": "skipped"}.get(outcome.state, "")
    return _case(f"fail-if.{outcome.tier}", outcome.rule.text, tag, outcome.evidence)


def _case(group: str, name: str, tag: str, text: str) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase", classname=clean(f"hwtune.ab-bench.{group}"), name=clean(name)
    )
    if tag:
        ElementTree.SubElement(case, tag, message=clean(text))
    else:
        ElementTree.SubElement(case, "system-out").text = clean(text)
    return case
