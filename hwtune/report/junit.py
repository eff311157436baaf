"""Marker report -> JUnit XML, one test case per check."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from hwtune.domain.check_records import Check, MarkerReport

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold at all, escaped or not."""


def report_to_junit(report: MarkerReport) -> str:
    """A ``testsuite`` as CI systems read it."""
    suite = ElementTree.Element(
        "testsuite",
        name="hwtune verify-markers",
        tests=str(len(report.checks)),
        failures=str(len(report.failed)),
        errors="0",
        skipped=str(sum(check.status == "skipped" for check in report.checks)),
    )
    for check in report.checks:
        _add_case(suite, check)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def _add_case(suite: ElementTree.Element, check: Check) -> None:
    case = ElementTree.SubElement(
        suite, "testcase", classname="hwtune.verify-markers", name=clean(check.name)
    )
    if check.status == "skipped":
        ElementTree.SubElement(case, "skipped", message=clean(check.reason))
    if check.status == "failed":
        failure = ElementTree.SubElement(case, "failure", message=clean(check.reason))
        failure.text = clean("\n".join(_details(check)))


def _details(check: Check) -> list[str]:
    lines = [f"expected: {check.expected}", f"seen: {check.seen}"]
    lines += [f"{place.file}:{place.line}: {place.text}" for place in check.evidence]
    lines += [f"likely: {cause.text} Next: {cause.next_step}" for cause in check.diagnosis]
    return lines


def clean(text: str) -> str:
    """Without characters that XML cannot hold."""
    return _NOT_XML.sub("\ufffd", text)
