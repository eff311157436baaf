"""Predicted calls against counted ones, and what explains a difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hwtune.domain.attn_states import AttnStates
from hwtune.domain.bench import RequestRecord
from hwtune.domain.check_kernels import KernelTally
from hwtune.domain.scheduler.prediction import Forecast
from hwtune.domain.scheduler.workloads import WorkItem, Workload

Agreement = Literal["exact", "differs", "not exact by nature"]
HIT = "hit"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountRow:
    """One kernel and one thing that can happen to a call."""

    kernel: str
    outcome: str
    """``hit``, or the reason of a fall-back."""
    predicted: int
    """Calls: steps x layers x ranks."""
    counted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A prediction held against the counters of a real run."""

    arm: str
    rows: tuple[CountRow, ...]
    concurrency: int
    calls_per_step: int
    """Full-attention layers x ranks."""
    agreement: Agreement
    reasons: tuple[str, ...]
    """What explains differences, or why the counts cannot be exact."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What is known of a real run beside its counters."""

    arm: str
    concurrency: int
    open_loop: bool
    failed_requests: int
    foreign_requests: int | None
    """Requests that the server answered and no record tells of; None when that is not known."""
    graphs: bool
    """Whether the server replays captured graphs."""
    calls_per_step: int
    ranks: int = 1


def compare_counts(
    forecast: Forecast,
    tallies: Sequence[KernelTally],
    facts: RunFacts,
    states: AttnStates | None = None,
) -> Comparison:
    """Every outcome of every kernel, predicted and counted.

    Args:
        states: what the hook in vllm-ascend counted, if it was there.
    """
    rows = tuple(_rows(forecast, tallies, facts.calls_per_step))
    if states is not None:
        rows += tuple(_ascend_rows(forecast, states, facts))
    reasons = tuple(_reasons(rows, tallies, facts))
    equal = all(row.predicted == row.counted for row in rows)
    sequential = facts.concurrency == 1 and not facts.open_loop
    agreement: Agreement = "exact" if equal else "differs"
    if not equal and not sequential and not _broken(tallies, facts):
        agreement = "not exact by nature"
    return Comparison(
        arm=facts.arm,
        rows=rows,
        concurrency=facts.concurrency,
        calls_per_step=facts.calls_per_step,
        agreement=agreement,
        reasons=() if equal else reasons,
    )


def _rows(
    forecast: Forecast, tallies: Sequence[KernelTally], calls_per_step: int
) -> Iterator[CountRow]:
    counted = {tally.kernel: tally for tally in tallies}
    for kernel in forecast.kernels:
        tally = counted.get(kernel.name)
        seen = {HIT: tally.hits, **dict(tally.fallbacks)} if tally else {}
        steps = {HIT: kernel.hit_steps, **kernel.fallbacks}
        for outcome in dict.fromkeys((*steps, *seen)):
            yield CountRow(
                kernel=kernel.name,
                outcome=outcome,
                predicted=calls_per_step * steps.get(outcome, 0),
                counted=seen.get(outcome, 0),
            )


def _ascend_rows(forecast: Forecast, states: AttnStates, facts: RunFacts) -> Iterator[CountRow]:
    """Attention states in steps of all ranks, and operators in calls of all layers and ranks."""
    stored = dict(states.stored)
    for state in dict.fromkeys((*forecast.ascend_states, *stored)):
        yield CountRow(
            kernel="attn_state",
            outcome=state,
            predicted=facts.ranks * forecast.ascend_states.get(state, 0),
            counted=stored.get(state, 0),
        )
    predicted: Counter[str] = Counter()
    for name, calls in forecast.ascend_calls.items():
        predicted[name.partition(",")[0]] += calls
    for operator in dict.fromkeys(call.operator for call in states.calls):
        yield CountRow(
            kernel=operator,
            outcome="called",
            predicted=facts.calls_per_step * predicted[operator],
            counted=sum(call.called for call in states.calls if call.operator == operator),
        )


def _broken(tallies: Sequence[KernelTally], facts: RunFacts) -> bool:
    return bool(facts.failed_requests or any(tally.faults for tally in tallies))


def _reasons(
    rows: Sequence[CountRow], tallies: Sequence[KernelTally], facts: RunFacts
) -> Iterator[str]:
    if not tallies:
        yield "no call was counted: the plugin was not in the server, or its counters are gone"
    if facts.foreign_requests:
        yield f"{facts.foreign_requests} requests of others reached the server"
    if facts.failed_requests:
        yield f"{facts.failed_requests} requests failed: how many steps they took is not known"
    for tally in tallies:
        if tally.faults:
            yield f"{tally.kernel}: {tally.faults} calls raised and were served by vLLM's own path"
        if tally.captured:
            yield f"{tally.kernel}: {tally.captured} calls were recorded into graphs"
    if facts.graphs:
        yield "graphs are replayed: a call inside a replay is not counted"
    if facts.open_loop:
        yield "open loop: how requests met steps depends on the time each step took"
    elif facts.concurrency > 1:
        yield (
            f"concurrency {facts.concurrency}: which step a new request joins depends on how long"
            " its answer's way back and its own way took; the prediction takes it to join at once"
        )
    yield from _unavailable(rows)


def _unavailable(rows: Sequence[CountRow]) -> Iterator[str]:
    for row in rows:
        if (
            row.counted
            and not row.predicted
            and row.outcome.startswith(("implementation", "raised"))
        ):
            yield f"{row.kernel}: {row.outcome}"


def items_of_records(records: Iterable[RequestRecord]) -> tuple[WorkItem, ...]:
    """The answered requests of one server in the order in which they were sent.

    Requests that were sent together (a block of a tier, a warm-up) form a block; the next block
    was sent when the one before was done.
    """
    answered = [record for record in records if record.failure is None]
    answered.sort(key=lambda record: record.started_unix_s)
    items: list[WorkItem] = []
    block, last = -1, None
    for at, record in enumerate(answered):
        place = (record.phase, record.arm, record.tier, record.pair, record.attempt)
        if place != last:
            block, last = block + 1, place
        items.append(
            WorkItem(
                id=f"r{at}",
                prompt_tokens=record.prompt_tokens or 1,
                output_tokens=record.output_tokens or 1,
                arrival_ms=1000.0 * (record.started_unix_s - answered[0].started_unix_s),
                prefix_id=record.prompt_id,
                prefix_tokens=record.prompt_tokens or 1,
                block=block,
            )
        )
    return tuple(items)


def preceded(workload: Workload, first: WorkItem) -> Workload:
    """The workload with one more request, alone, before everything else."""
    later = tuple(replace(item, block=item.block + 1) for item in workload.items)
    return replace(workload, items=(replace(first, block=0), *later))
