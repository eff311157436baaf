"""Is the server that answers the one that the plan started and the log is of?"""

from __future__ import annotations

from collections.abc import Iterator

from hwtune.domain.check_records import Check
from hwtune.domain.evidence import Evidence, Fact, Place, Value

_COMPARED = ("vllm_version", "max_model_len", "num_gpu_blocks", "prefix_caching")
"""Facts that a log and the endpoints state alike when they are of one server. Blocks are not among
them: the page line is older than what /metrics shows."""


def live_checks(evidence: Evidence) -> Iterator[Check]:
    """The plan's release, and agreement of log and endpoints."""
    if evidence.plan is not None and evidence.plan.vllm_version:
        yield _release(evidence, evidence.plan.vllm_version)
    facts = [evidence.facts[name] for name in _COMPARED if name in evidence.facts]
    pairs = [(fact, _live(fact), _logged(fact)) for fact in facts]
    both = [pair for pair in pairs if pair[1] and pair[2]]
    if both:
        yield _same_server(both)


def _release(evidence: Evidence, planned: str) -> Check:
    question = "Is it the vLLM that was planned for?"
    seen = evidence.value("vllm_version")
    if not isinstance(seen, str):
        reason = "nothing in the input states it"
        return Check(
            name="version", question=question, status="skipped", expected=planned, reason=reason
        )
    same = seen.split("+")[0] == planned.split("+")[0]
    return Check(
        name="version",
        question=question,
        status="passed" if same else "failed",
        expected=planned,
        seen=seen,
        reason="" if same else f"planned for vLLM {planned}, and {seen} runs",
        evidence=evidence.places("vllm_version")[:2],
    )


_Seen = dict[Value, Place]


def _same_server(both: list[tuple[Fact, _Seen, _Seen]]) -> Check:
    question = "Are the log and the server that answers one and the same?"
    apart = [(fact, live, log) for fact, live, log in both if not set(live) & set(log)]
    texts = [
        f"{fact.name} is {next(iter(live))} live and {next(iter(log))} in the log"
        for fact, live, log in apart
    ]
    shown = apart or both
    places = [place for _, live, log in shown for place in (*live.values(), *log.values())]
    return Check(
        name="same_server",
        question=question,
        status="failed" if apart else "passed",
        expected="the same facts",
        seen="; ".join(texts) or f"{', '.join(fact.name for fact, _, _ in both)} agree",
        reason=f"the log is of another server: {'; '.join(texts)}" if apart else "",
        evidence=tuple(places[:4]),
    )


def _live(fact: Fact) -> _Seen:
    return {value: place for value, place in _sightings(fact) if place.is_url}


def _logged(fact: Fact) -> _Seen:
    return {value: place for value, place in _sightings(fact) if not place.is_url and place.line}


def _sightings(fact: Fact) -> Iterator[tuple[Value, Place]]:
    yield from ((fact.value, place) for place in fact.evidence)
    yield from ((item.value, item.place) for item in fact.others)
