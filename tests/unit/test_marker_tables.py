"""Every packaged marker and diagnosis proves itself by its example and counter-example."""

from __future__ import annotations

import pytest

from hwtune.domain.check_records import DiagnosisRule
from hwtune.domain.collecting import EvidenceCollector
from hwtune.domain.expectations import parse_expectations
from hwtune.domain.log_lines import parse_line
from hwtune.domain.marker_set import Marker, match_line
from hwtune.domain.markers import check
from hwtune.io.marker_sets import load_diagnoses, load_markers

MARKERS = load_markers().markers
DIAGNOSES = load_diagnoses()
HEADER = "INFO 11-30 06:51:47 [x.py:1] "


def _matches(marker: Marker, text: str) -> bool:
    return any(match_line(parse_line("x", 1, text), (marker,)))


@pytest.mark.parametrize("marker", MARKERS, ids=lambda marker: marker.id)
def test_marker_matches_its_examples_only(marker: Marker) -> None:
    assert [text for text in marker.examples if not _matches(marker, text)] == []
    assert [text for text in marker.counter_examples if _matches(marker, text)] == []


def test_marker_names_are_unique() -> None:
    names = [marker.id for marker in MARKERS]
    assert sorted(set(names)) == sorted(names)


def test_every_fact_that_a_marker_states_is_described() -> None:
    stated = {marker.fact for marker in MARKERS if marker.fact is not None}
    assert stated - set(load_markers().facts) == set()


def _causes(log: str, expect: str) -> set[str]:
    collector = EvidenceCollector(load_markers(), nonce="a1")
    collector.feed("x", enumerate(log.split("\n"), start=1))
    expected = parse_expectations(expect.split(), base=None, facts=())
    report = check(
        collector.evidence(), expected.expect, require_kernel_hits=True, diagnoses=DIAGNOSES
    )
    return {cause.id for failed in report.failed for cause in failed.diagnosis}


WITH_LOG = [rule for rule in DIAGNOSES if rule.example]


@pytest.mark.parametrize("rule", WITH_LOG, ids=lambda rule: rule.id)
def test_diagnosis_explains_its_example_only(rule: DiagnosisRule) -> None:
    assert rule.id in _causes(rule.example["log"], rule.example["expect"])
    assert rule.id not in _causes(rule.counter_example["log"], rule.counter_example["expect"])


def test_rules_without_a_log_are_those_that_need_a_run_directory() -> None:
    without = {rule.id for rule in DIAGNOSES if not rule.example}
    assert without == {
        "other_version",
        "log_of_another_run",
        "request_misses_kernel",
        "no_matching_call",
        "captured_only",
    }


@pytest.mark.parametrize("marker", MARKERS, ids=lambda marker: marker.id)
def test_no_pattern_takes_more_than_linear_time(marker: Marker) -> None:
    """Would not end within a test run if it did: long lines of what the pattern looks for."""
    for start in marker.starts:
        for filling in ("A_ATTN", "1", "a", " ", "['A', ", "Falling back to ", "x=(", "12, "):
            list(match_line(parse_line("x", 1, HEADER + start + filling * 40_000), (marker,)))
