"""The four questions of a page that "seemed ineffective", answered from evidence.

Is the layout change in? What is the block size at run time? Did each kernel hit? Did prefix
caching change the page?
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from hwtune.domain.check_kernels import NOT_VERIFIED, tallies
from hwtune.domain.check_records import Check, MarkerReport
from hwtune.domain.check_rules import NOT_STATED, bound_pages, page_seen, show_value
from hwtune.domain.evidence import Evidence, Place, Value

BLOCK_FACTS = (
    ("attention_block_size", "attention page"),
    ("manager_block_sizes", "KV-cache groups"),
    ("manager_block_size", "manager block"),
    ("scheduler_block_size", "scheduler block"),
    ("kernel_block_sizes", "kernel blocks"),
    ("mamba_block_size", "mamba block"),
    ("hash_block_size", "hash block"),
    ("requested_block_size", "--block-size given"),
)
"""Several block sizes can be true at once, so each has its own name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One question and its answer."""

    id: str
    question: str
    answer: str
    evidence: tuple[Place, ...]


def answers(evidence: Evidence, report: MarkerReport) -> tuple[Answer, ...]:
    """The four answers, in the order in which they should be asked."""
    checks = {check.name: check for check in report.checks}
    return (
        _layout(evidence, checks.get("page")),
        _blocks(evidence),
        _kernels(evidence),
        _prefix_caching(evidence, checks),
    )


def _layout(evidence: Evidence, check: Check | None) -> Answer:
    seen, places = page_seen(evidence)
    if check is not None and check.status == "skipped":
        text = f"cannot tell: {check.reason}"
    elif check is not None and seen is None and check.status == "failed":
        text = f"cannot tell: planned {check.expected}, and nothing states the page"
    elif check is not None:
        verdict = "yes" if check.status == "passed" else "no"
        text = f"{verdict}: planned {check.expected}, seen {check.seen}"
    elif seen is None:
        text = "cannot tell: no line states the attention page, and nothing was expected"
    else:
        text = f"cannot tell without --expect block_size=N: the page is {seen} = {_grain(seen)}"
    return Answer(id="layout", question="Is the layout change in?", answer=text, evidence=places)


def _grain(page: int) -> str:
    """784 -> ``49 x 16``: the power of two that is left for kernel blocks."""
    power = page & -page
    return f"{page // power} x {power}" if power < page else f"{page}, a power of two"


def _blocks(evidence: Evidence) -> Answer:
    parts: list[str] = []
    places: list[Place] = []
    for name, title in BLOCK_FACTS:
        value = evidence.value(name)
        if value is not None:
            parts.append(f"{title} {show_value(value)}")
            places.extend(evidence.places(name)[:1])
    bound = bound_pages(evidence)
    if bound:
        parts.append(f"bound to layers {', '.join(str(page) for page in bound)}")
        places.extend(mark.place for mark in list(bound.values())[:1])
    return Answer(
        id="block_size",
        question="What is the block size at run time?",
        answer="; ".join(parts) or "not stated in the input",
        evidence=tuple(places),
    )


def _kernels(evidence: Evidence) -> Answer:
    counted = tallies(evidence)
    first = [mark for mark in evidence.marks if mark.kind == "first hit"]
    if counted:
        text = "; ".join(
            _tally(item.kernel, item.hits, item.captured, item.fallbacks) for item in counted
        )
    elif first:
        names = dict.fromkeys(mark.fields.get("kernel", "?") for mark in first)
        text = f"first hit logged for {', '.join(names)}; no counters, so no number of calls"
    elif any(mark.kind in ("registered", "layer bound") for mark in evidence.marks):
        text = "registered, not seen to be called"
    else:
        text = "no kernel of hwtune's is in the input"
    places = tuple(mark.place for mark in first[:4])
    return Answer(id="kernels", question="Did each kernel hit?", answer=text, evidence=places)


def _tally(kernel: str, hits: int, captured: int, fallbacks: tuple[tuple[str, int], ...]) -> str:
    text = f"{kernel}: {hits} hits"
    if captured:
        text += f", {captured} captured in graphs"
    total = sum(calls for _, calls in fallbacks)
    return f"{text}, {total} fell back ({fallbacks[0][0]})" if total else text


def _prefix_caching(evidence: Evidence, checks: dict[str, Check]) -> Answer:
    caching, mode = evidence.value("prefix_caching"), evidence.value("mamba_cache_mode")
    question = "Did prefix caching change the page?"
    places = (*evidence.places("prefix_caching")[:1], *evidence.places("mamba_cache_mode")[:1])
    if caching is None:
        text = "cannot tell: nothing states whether it is on"
        return Answer(id="prefix_caching", question=question, answer=text, evidence=())
    state = f"prefix caching {show_value(caching)}"
    state += f", mamba cache mode {mode}" if mode is not None else ""
    page, check = checks.get("page"), checks.get("prefix_caching")
    if check is None or page is None:
        text = f"{state}; without a planned page nothing to compare with"
    elif page.status == "passed":
        text = f"no: the page is as planned; {state}"
    elif page.seen == NOT_STATED:
        text = f"cannot tell: nothing states the page; {state}"
    elif check.status == "failed":
        text = f"likely: {state}, planned {check.expected}, and the page differs"
    else:
        text = f"no: {state} as planned; the page differs for another reason"
    return Answer(id="prefix_caching", question=question, answer=text, evidence=places)


def remarks(evidence: Evidence) -> tuple[str, ...]:
    """What a careful reader would note: contradictions, and what they mean."""
    found = [*evidence.notes]
    found.extend(_starts(evidence))
    found.extend(_blocks_apart(evidence))
    found.extend(_asked_block(evidence))
    found.extend(_others(evidence))
    found.extend(_smallest_reuse(evidence))
    found.extend(_capacity(evidence))
    found.extend(_idle_plugins(evidence))
    if evidence.marks and not evidence.nonce_verified:
        found.append(f"hwtune's lines carry nonce {evidence.nonce}: {NOT_VERIFIED}")
    if evidence.request_errors:
        found.append(
            f"{evidence.request_errors} requests failed; the server itself is not at fault"
        )
    if evidence.foreign_marks:
        found.append(
            f"{evidence.foreign_marks} marker texts of another run or quoted inside other "
            "messages were not taken as evidence"
        )
    failed = evidence.value("plugins_failed")
    if failed is not None:
        found.append(
            f"plugins whose import raised, so that vLLM goes on without: {show_value(failed)}"
        )
    unknown = evidence.value("unknown_environment")
    if unknown is not None:
        found.append(
            f"vLLM does not know these variables (a private switch or a typo): {show_value(unknown)}"
        )
    return tuple(found)


_MAX_STARTS_SHOWN = 5


def _starts(evidence: Evidence) -> list[str]:
    """The other starts in the same log, and how each of them went."""
    others = [item for item in evidence.starts if item.number != evidence.judged_start]
    if not others:
        return []
    number = evidence.starts[-1].number
    which = "the last" if evidence.judged_start == number else f"number {evidence.judged_start}"
    found = [f"{number} starts of a server in this log; {which} is judged (--start N for another)"]
    for item in others[-_MAX_STARTS_SHOWN:]:
        at = "" if item.place is None else f" (from {item.place.file}:{item.place.line})"
        found.append(f"start {item.number}{at}: {item.outcome}")
    return found


def _idle_plugins(evidence: Evidence) -> list[str]:
    """Available is not activated: a plugin whose registration fails leaves no other trace."""
    available, loaded = evidence.value("plugins_available"), evidence.value("plugins_loaded")
    names = [name for name in _items(available) if name not in _items(loaded)]
    if not names:
        return []
    device = evidence.value("device")
    tail = f"; the engine's device is {device}" if device is not None else ""
    return [f"available, and no line says loaded or activated: {', '.join(names)}{tail}"]


def _items(value: Value | None) -> list[str]:
    return [str(item) for item in value] if isinstance(value, tuple) else []


def _blocks_apart(evidence: Evidence) -> list[str]:
    page, scheduler = evidence.value("attention_block_size"), evidence.value("scheduler_block_size")
    groups, mamba = evidence.value("manager_block_sizes"), evidence.value("mamba_block_size")
    sizes = [size for size in groups if isinstance(size, int)] if isinstance(groups, tuple) else []
    found = []
    if isinstance(page, int) and isinstance(scheduler, int) and page != scheduler:
        text = f"attention page {page} and scheduler block {scheduler} are both true: "
        if sizes and math.lcm(*sizes) == scheduler:
            text += f"the scheduler counts in the least common multiple of the groups {sizes}"
        else:
            text += "the page line is printed before the engine settles the block over all groups"
        found.append(text)
    if isinstance(mamba, int) and sizes and mamba not in sizes:
        found.append(
            f"mamba_block_size {mamba} is no block of the groups {sizes}: /metrics shows the "
            "engine process's copy, which is older than what the worker resolved"
        )
    return found


def _asked_block(evidence: Evidence) -> list[str]:
    """What was asked for and what is in force are two facts."""
    asked = evidence.value("requested_block_size")
    page, manager = evidence.value("attention_block_size"), evidence.value("manager_block_size")
    seen = page if isinstance(page, int) else manager
    if not isinstance(asked, int) or not isinstance(seen, int) or asked == seen:
        return []
    what = "the page" if seen is page else "the block in force"
    why = ", the next multiple that holds a recurrent state" if seen % asked == 0 else ""
    return [f"--block-size {asked} was asked for, and {what} is {seen}{why}"]


_DRAFTS = re.compile(r"speculative_config=SpeculativeConfig\(|'speculative_config': ")


def _smallest_reuse(evidence: Evidence) -> list[str]:
    """Only whole blocks are reused, and with a drafter the last one never is."""
    page = evidence.value("attention_block_size")
    if evidence.value("prefix_caching") is not True or not isinstance(page, int):
        return []
    texts = [evidence.value("engine_config"), evidence.value("user_flags")]
    drafted = any(isinstance(text, str) and _DRAFTS.search(text) for text in texts)
    least = 2 * page if drafted else page
    extra = f" (the last block is never reused beside a draft model, so {least})" if drafted else ""
    return [f"prefix caching is on, and shared prefixes below {page} tokens cannot hit{extra}"]


_LOUD = ("attention_block_size", "padding_pct", "prefix_caching", "vllm_version", "kv_cache_tokens")


def _others(evidence: Evidence) -> list[str]:
    found = []
    for name in _LOUD:
        fact = evidence.facts.get(name)
        if fact is not None and fact.others:
            seen = ", ".join(
                f"{show_value(item.value)} ({item.place.file}:{item.place.line})"
                for item in fact.others
            )
            found.append(f"{name} is {show_value(fact.value)}; also stated: {seen}")
    return found


def _capacity(evidence: Evidence) -> list[str]:
    tokens, times = evidence.value("kv_cache_tokens"), evidence.value("max_concurrency")
    longest = evidence.value("max_model_len")
    if isinstance(times, float) and times < 1:
        found = [f"one request of the longest context does not fit ({times}x)"]
    else:
        found = []
    if isinstance(tokens, int) and isinstance(times, float) and isinstance(longest, int):
        implied = times * longest
        if not 0.8 < implied / max(tokens, 1) < 1.25:
            found.append(
                f"capacity {tokens:,} tokens and {times}x of {longest:,} (= {implied:,.0f}) "
                "contradict: on hybrids the printed token count is a derived figure"
            )
    return found
