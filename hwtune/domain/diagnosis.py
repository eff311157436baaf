"""Why a check failed: symptoms of the evidence, and rules (data) that read them."""

from __future__ import annotations

from collections.abc import Mapping

from hwtune.domain.check_kernels import is_call_reason, tally
from hwtune.domain.check_records import Cause, Check, Clue, DiagnosisRule
from hwtune.domain.check_rules import page_seen, show_value
from hwtune.domain.evidence import Evidence, Mark
from hwtune.domain.failures import first_cause
from hwtune.domain.launch import Expectation

Symptoms = Mapping[str, str]
"""Symptom -> value, all text; what is unknown is absent."""


def symptoms_of(evidence: Evidence, expect: Expectation | None) -> Symptoms:
    """What the rules of ``diagnoses.toml`` may ask for."""
    symptoms = {f"fact.{name}": show_value(fact.value) for name, fact in evidence.facts.items()}
    symptoms.update(_plugin_symptoms(evidence))
    symptoms.update(_page_symptoms(evidence, expect))
    symptoms.update(_plan_symptoms(evidence))
    cause = first_cause(evidence)
    symptoms["first_error"] = "" if cause is None else cause.text
    symptoms["cause_is_report"] = _yes(cause is not None and cause.wrapper)
    symptoms["all_errors"] = "\n".join(
        failure.text for failure in evidence.failures if failure.phase != "shutdown"
    )
    symptoms["log_ends"] = _yes(cause is None and symptoms.get("fact.startup_complete") != "on")
    symptoms["any_calls"] = _yes(any(c.calls for c in evidence.counts))
    return symptoms


def symptoms_for(check: Check, evidence: Evidence, symptoms: Symptoms) -> Symptoms:
    """The symptoms, with those of the one kernel that a check is about."""
    prefix, _, kernel = check.name.partition(":")
    return symptoms if prefix != "kernel" else {**symptoms, **_kernel_symptoms(evidence, kernel)}


def _kernel_symptoms(evidence: Evidence, kernel: str) -> dict[str, str]:
    counted = tally(evidence.counts, kernel)
    reasons = [reason for reason, calls in counted.fallbacks if calls]
    of_calls = [reason for reason in reasons if is_call_reason(reason)]
    refusals = [text for mark in evidence.marks for text in _refusals(mark, kernel)]
    return {
        "layer_refusals": refusals[0] if refusals else "",
        "fallback_reasons": "; ".join(reasons),
        "only_other_requests_match": _yes(bool(reasons) and len(of_calls) == len(reasons)),
        "captured": _yes(counted.captured > 0),
    }


def _refusals(mark: Mark, kernel: str) -> list[str]:
    """``refuses=a:page 784;b:no`` of a bound layer -> what it says of one kernel."""
    if mark.kind != "layer bound":
        return []
    items = mark.fields.get("refuses", "-").split(";")
    return [item for item in items if item.startswith(f"{kernel}:")]


def _plugin_symptoms(evidence: Evidence) -> dict[str, str]:
    kinds = {mark.kind for mark in evidence.marks}
    refused = [mark for mark in evidence.marks if mark.kind == "refused"]
    available = evidence.value("plugins_available")
    symptoms = {
        "registered": _yes("registered" in kinds),
        "observing": _yes("observing" in kinds),
        "plugin_present": _yes(bool(kinds & {"registered", "observing"})),
        "layer_bound": _yes("layer bound" in kinds),
        "other_run": _yes(bool(evidence.other_runs)),
        "foreign_marks": _yes(evidence.foreign_marks > 0),
        "refused": refused[0].fields.get("reason", "no reason") if refused else "",
    }
    if isinstance(available, tuple):
        symptoms["plugin_available"] = _yes("hwtune" in available)
    return symptoms


def _page_symptoms(evidence: Evidence, expect: Expectation | None) -> dict[str, str]:
    seen, _ = page_seen(evidence)
    symptoms = {"page": "absent" if seen is None else str(seen)}
    if seen is not None:
        symptoms["page_divides_64"] = _yes(seen % 64 == 0)
    if expect is None:
        return symptoms
    if seen is not None and isinstance(expect.block_size, int):
        symptoms["page_relation"] = _relation(seen, expect.block_size)
    caching = evidence.value("prefix_caching")
    if expect.enable_prefix_caching is not None and caching is not None:
        symptoms["prefix_caching_differs"] = _yes(caching is not expect.enable_prefix_caching)
    mode = evidence.value("mamba_cache_mode")
    if expect.mamba_cache_mode is not None and mode is not None:
        symptoms["mamba_cache_mode_differs"] = _yes(mode != expect.mamba_cache_mode)
    return symptoms


def _relation(seen: int, wanted: int) -> str:
    if seen == wanted:
        return "equal"
    return "smaller" if seen < wanted else "larger"


def _plan_symptoms(evidence: Evidence) -> dict[str, str]:
    plan, version = evidence.plan, evidence.value("vllm_version")
    if plan is None:
        return {}
    symptoms = {
        "planned_version": plan.vllm_version,
        "planned_block_size": _yes(any(item.split("=")[0] == "--block-size" for item in plan.argv)),
    }
    if isinstance(version, str):
        same = version.split("+")[0] == plan.vllm_version.split("+")[0]
        symptoms["version_differs"] = _yes(not same)
    return symptoms


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def explain(
    check: Check, symptoms: Symptoms, rules: tuple[DiagnosisRule, ...]
) -> tuple[Cause, ...]:
    """Likely causes of a failed check: least contradicted, then best supported, first.

    Ties stay in the order of the rules.
    """
    found: list[tuple[int, int, Cause]] = []
    for rule in rules:
        if not _about(rule, check.name) or not all(_holds(c, symptoms) for c in rule.requires):
            continue
        supports = _said(rule.requires, symptoms) + _said(rule.supports, symptoms)
        contradicts = _said(rule.contradicts, symptoms)
        if not supports:
            continue
        cause = Cause(
            id=rule.id,
            text=rule.cause,
            supports=supports,
            contradicts=contradicts,
            next_step=rule.next_step,
        )
        found.append((len(contradicts), -len(supports), cause))
    return tuple(cause for *_, cause in sorted(found, key=lambda item: item[:2]))


def _about(rule: DiagnosisRule, name: str) -> bool:
    return any(
        name == item or (item.endswith("*") and name.startswith(item[:-1])) for item in rule.checks
    )


def _said(clues: tuple[Clue, ...], symptoms: Symptoms) -> tuple[str, ...]:
    held = (clue for clue in clues if _holds(clue, symptoms))
    return tuple(clue.says.format(value=symptoms[clue.symptom]) for clue in held if clue.says)


def _holds(clue: Clue, symptoms: Symptoms) -> bool:
    value = symptoms.get(clue.symptom)
    if value is None:
        return False
    if clue.equals is not None:
        return value == clue.equals
    return not clue.contains or any(text in value for text in clue.contains)
