"""The checks themselves. Each takes evidence and expectation and returns one Check or more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from hwtune.domain.attn_states import attn_state_checks
from hwtune.domain.backend_names import same_backend
from hwtune.domain.check_evidence import evidence_checks
from hwtune.domain.check_health import health_checks
from hwtune.domain.check_kernels import NOT_VERIFIED, kernel_checks
from hwtune.domain.check_numbers import number_checks
from hwtune.domain.check_records import Check, CheckStatus
from hwtune.domain.evidence import Evidence, Mark, Place, Value
from hwtune.domain.expectations import BLOCK_MULTIPLE
from hwtune.domain.launch import Expectation

NOT_STATED = "not stated"
_PADDING_TOLERANCE_PCT = 0.0051
"""vLLM prints two decimals."""


def all_checks(
    evidence: Evidence,
    expect: Expectation | None,
    *,
    require_kernel_hits: bool,
    facts: Mapping[str, str],
) -> tuple[Check, ...]:
    """Every check that applies, in the order in which people should read them."""
    checks = list(health_checks(evidence))
    if expect is not None:
        checks.extend(_expected_checks(evidence, expect))
    checks.extend(_agreement(evidence))
    checks.extend(_named_fact(evidence, name, value) for name, value in facts.items())
    if evidence.other_runs:
        checks = [_void(item, evidence) for item in checks]
    kernels = kernel_checks(evidence, expect, require_hits=require_kernel_hits)
    states = attn_state_checks(evidence, require=require_kernel_hits)
    numbers = number_checks(evidence)
    return (*checks, *kernels, *states, *numbers, *evidence_checks(evidence))


def _void(check: Check, evidence: Evidence) -> Check:
    """What another run's log states neither proves nor refutes anything of this one."""
    reason = f"the log is of another run (nonce {', '.join(evidence.other_runs)})"
    return replace(check, status="skipped", seen=NOT_STATED, reason=reason)


def _expected_checks(evidence: Evidence, expect: Expectation) -> Iterator[Check]:
    if expect.block_size is not None:
        yield page_check(evidence, expect.block_size)
    if expect.padding_pct is not None:
        yield _padding(evidence, expect.padding_pct)
    if expect.enable_prefix_caching is not None:
        yield _prefix_caching(evidence, wanted=expect.enable_prefix_caching)
    if expect.mamba_cache_mode is not None:
        yield _cache_mode(evidence, expect.mamba_cache_mode)
    if expect.backend is not None:
        yield _backend(evidence, expect.backend)


def bound_pages(evidence: Evidence) -> dict[int, Mark]:
    """Pages that the plugin saw on the attention layers, each with the first layer."""
    pages: dict[int, Mark] = {}
    for mark in evidence.marks:
        size = mark.fields.get("block_size", "")
        if mark.kind == "layer bound" and size.isdecimal():
            pages.setdefault(int(size), mark)
    return pages


def page_seen(evidence: Evidence) -> tuple[int | None, tuple[Place, ...]]:
    """The attention page: vLLM's line, else what the plugin saw on the layers."""
    value = evidence.value("attention_block_size")
    if isinstance(value, int):
        return value, evidence.places("attention_block_size")
    pages = bound_pages(evidence)
    if len(pages) == 1:
        (page, mark), *_ = pages.items()
        return page, (mark.place,)
    return None, ()


def page_check(evidence: Evidence, wanted: int) -> Check:
    """Is the layout change in?"""
    seen, places = page_seen(evidence)
    question = "Is the layout change in? (attention page in tokens)"
    if seen is None:
        scheduler = evidence.value("scheduler_block_size")
        if scheduler == wanted:
            places = evidence.places("scheduler_block_size")
            return _result("page", question, "passed", str(wanted), f"{scheduler}", "", places)
        reason = (
            f"expected {wanted}; no line states the attention page (the log lacks the start-up "
            "part, the model is not hybrid, or the page was already large enough)"
        )
        return _result("page", question, "failed", str(wanted), NOT_STATED, reason, ())
    status: CheckStatus = "passed" if seen == wanted else "failed"
    reason = "" if seen == wanted else f"expected {wanted} tokens, vLLM chose {seen}"
    unsure = evidence.value("attention_block_size") is None and not evidence.nonce_verified
    shown = f"{seen} ({NOT_VERIFIED})" if unsure else str(seen)
    return _result("page", question, status, str(wanted), shown, reason, places)


def _padding(evidence: Evidence, wanted: float) -> Check:
    question = "Padding of the recurrent page as vLLM prints it (%)"
    seen = evidence.value("padding_pct")
    if not isinstance(seen, (int, float)):
        exact = wanted < _PADDING_TOLERANCE_PCT
        reason = "" if exact else "no padding line; vLLM prints none when the page fits exactly"
        status: CheckStatus = "passed" if exact else "skipped"
        return _result("padding", question, status, f"{wanted:.2f}", "no line", reason, ())
    same = abs(seen - wanted) < _PADDING_TOLERANCE_PCT
    return _result(
        "padding",
        question,
        "passed" if same else "failed",
        f"{wanted:.2f}",
        f"{seen:.2f}",
        "" if same else f"expected {wanted:.2f} %, printed {seen:.2f} %",
        evidence.places("padding_pct"),
    )


def _prefix_caching(evidence: Evidence, *, wanted: bool) -> Check:
    return _compare(
        evidence,
        name="prefix_caching",
        fact="prefix_caching",
        question="Is prefix caching as planned? (it can change the page)",
        wanted="on" if wanted else "off",
        same=evidence.value("prefix_caching") is wanted,
    )


def _cache_mode(evidence: Evidence, wanted: str) -> Check:
    question = "How recurrent states are cached"
    if evidence.value("mamba_cache_mode") is None and wanted == "none":
        off = evidence.value("prefix_caching") is False
        reason = "" if off else "the mode is not stated"
        status: CheckStatus = "passed" if off else "skipped"
        places = evidence.places("prefix_caching")
        seen = "prefix caching off" if off else NOT_STATED
        return _result("mamba_cache_mode", question, status, wanted, seen, reason, places)
    return _compare(
        evidence,
        name="mamba_cache_mode",
        fact="mamba_cache_mode",
        question=question,
        wanted=wanted,
        same=evidence.value("mamba_cache_mode") == wanted,
    )


def _backend(evidence: Evidence, wanted: str) -> Check:
    """vLLM's own line decides; where it prints none, the plugin's bound layers or counted calls."""
    question = "Which attention backend is in use? (selected by vLLM, or bound by the plugin)"
    own = [mark for mark in evidence.marks if mark.kind in ("registered", "observing")]
    bound = [mark for mark in evidence.marks if mark.kind == "layer bound"]
    used = bool(bound) or any(count.calls for count in evidence.counts)
    fact = evidence.facts.get("attention_backend")
    if fact is not None:
        stated = [str(fact.value), *(str(item.value) for item in fact.others if used)]
        same = any(same_backend(name, wanted) for name in stated)
        return _compare(
            evidence,
            name="backend",
            fact="attention_backend",
            question=question,
            wanted=wanted,
            same=same,
        )
    name = own[0].fields.get("backend", "") if own else ""
    if not name:
        reason = "nothing in the input states it"
        return _result("backend", question, "skipped", wanted, NOT_STATED, reason, ())
    places = tuple(mark.place for mark in (*bound[:1], *own)[:3])
    if not used:
        kind = own[0].kind
        reason, seen = f"{kind}, no layer bound yet", f"{name} ({kind})"
        return _result("backend", question, "skipped", wanted, seen, reason, places)
    same = same_backend(name, wanted)
    status: CheckStatus = "passed" if same else "failed"
    reason = "" if same else f"expected {wanted}, the plugin bound {name}"
    seen = name if evidence.nonce_verified else f"{name} ({NOT_VERIFIED})"
    return _result("backend", question, status, wanted, seen, reason, places)


def _compare(
    evidence: Evidence, *, name: str, fact: str, question: str, wanted: str, same: bool
) -> Check:
    seen = evidence.value(fact)
    if seen is None:
        reason = "nothing in the input states it"
        return _result(name, question, "skipped", wanted, NOT_STATED, reason, ())
    shown = show_value(seen)
    return _result(
        name,
        question,
        "passed" if same else "failed",
        wanted,
        shown,
        "" if same else f"expected {wanted}, seen {shown}",
        evidence.places(fact),
    )


def _multiple(evidence: Evidence, wanted: str) -> Check:
    seen, places = page_seen(evidence)
    question = "Is the attention page a multiple of what the kernel reads?"
    if seen is None:
        reason = f"expected a multiple of {wanted}; no line states the attention page"
        return _result(BLOCK_MULTIPLE, question, "failed", wanted, NOT_STATED, reason, ())
    rest = seen % int(wanted)
    reason = f"{seen} = {seen // int(wanted)} x {wanted} + {rest}" if rest else ""
    status: CheckStatus = "failed" if rest else "passed"
    return _result(BLOCK_MULTIPLE, question, status, wanted, str(seen), reason, places)


def _named_fact(evidence: Evidence, name: str, wanted: str) -> Check:
    if name == BLOCK_MULTIPLE:
        return _multiple(evidence, wanted)
    seen = evidence.value(name)
    same = seen is not None and wanted.lower() in (show_value(seen).lower(), str(seen).lower())
    check = _compare(
        evidence, name=name, fact=name, question=f"Fact {name}", wanted=wanted, same=same
    )
    if check.status != "skipped":
        return check
    reason = f"expected {wanted}; nothing in the input states it"
    return _result(name, check.question, "failed", wanted, NOT_STATED, reason, ())


def _agreement(evidence: Evidence) -> Iterator[Check]:
    """Do all workers have the same page?"""
    pages = bound_pages(evidence)
    fact = evidence.facts.get("attention_block_size")
    question = "Do all workers agree on the page?"
    if len(pages) > 1:
        places = tuple(mark.place for mark in pages.values())
        seen = ", ".join(str(page) for page in sorted(pages))
        yield _result("agreement", question, "failed", "one page", seen, f"pages {seen}", places)
    elif fact is not None and fact.others:
        mine = {place.process for place in fact.evidence}
        strangers = [item for item in fact.others if item.place.process not in mine]
        if strangers:
            seen = ", ".join(str(v) for v in (fact.value, *(item.value for item in strangers)))
            places = (*fact.evidence[:1], *(item.place for item in strangers))
            reason = f"processes chose different pages: {seen}"
            yield _result("agreement", question, "failed", "one page", seen, reason, places)


def show_value(value: Value) -> str:
    """A fact's value for people."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ", ".join(str(item) for item in value)
    return str(value)


def _result(
    name: str,
    question: str,
    status: CheckStatus,
    expected: str,
    seen: str,
    reason: str,
    places: tuple[Place, ...],
) -> Check:
    return Check(
        name=name,
        question=question,
        status=status,
        expected=expected,
        seen=seen,
        reason=reason,
        evidence=places,
    )
