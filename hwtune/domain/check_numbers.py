"""Does each kernel compute what vLLM computes? Asked in checked mode, in the real server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hwtune.domain.check_kernels import tally
from hwtune.domain.check_records import Check
from hwtune.domain.checking import KernelCheck
from hwtune.domain.evidence import Evidence

_QUESTION = "Does the kernel compute what vLLM's own path computes? (checked mode)"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedKernel:
    """All checked calls of one kernel over layers and processes."""

    kernel: str
    checked: int
    failed: int
    non_finite: int
    layers: int
    """Layers (times processes) that had a checked call."""
    worst: KernelCheck
    """The layer with the largest relative error."""
    worst_absolute: float


def checked_kernels(evidence: Evidence) -> tuple[CheckedKernel, ...]:
    """One record per kernel that had a checked call, in order of first appearance."""
    rows: dict[str, list[KernelCheck]] = {}
    for row in evidence.kernel_checks:
        if row.checked:
            rows.setdefault(row.kernel, []).append(row)
    return tuple(
        CheckedKernel(
            kernel=kernel,
            checked=sum(row.checked for row in mine),
            failed=sum(row.failed for row in mine),
            non_finite=sum(row.non_finite for row in mine),
            layers=len(mine),
            worst=max(mine, key=lambda row: row.worst_relative),
            worst_absolute=max(row.worst_absolute for row in mine),
        )
        for kernel, mine in rows.items()
    )


def number_checks(evidence: Evidence) -> Iterator[Check]:
    """One check per kernel of a server in checked mode; nothing for any other server."""
    plan = evidence.plan
    found = {item.kernel: item for item in checked_kernels(evidence)}
    planned = plan.expect.kernels if plan is not None and plan.checked_rate else ()
    for kernel in dict.fromkeys((*planned, *found)):
        item = found.get(kernel)
        yield _unchecked(evidence, kernel) if item is None else _compared(item)


def _compared(item: CheckedKernel) -> Check:
    worst = item.worst
    seen = (
        f"{item.checked} calls in {item.layers} layers compared, worst relative error "
        f"{worst.worst_relative:.2g} (tolerance {worst.tolerance:.2g}; {worst.layer}, query "
        f"{worst.worst_query_len}, context {worst.worst_context_len}), worst absolute "
        f"{item.worst_absolute:.2g}"
    )
    strange = f", {item.non_finite} NaN or Inf on one side only" if item.non_finite else ""
    reason = (
        f"{item.kernel} differed from vLLM's own path in {item.failed} of {seen}{strange}; "
        "the requests got vLLM's own output"
    )
    return Check(
        name=f"numbers:{item.kernel}",
        question=_QUESTION,
        status="failed" if item.failed else "passed",
        expected=f"relative error of each output row at most {worst.tolerance:.2g}",
        seen=seen + strange,
        reason=reason if item.failed else "",
    )


def _unchecked(evidence: Evidence, kernel: str) -> Check:
    counted = tally(evidence.counts, kernel)
    reason = "no hit to compare yet"
    if counted.captured:
        reason = "called in graph capture only, which is not compared; add --enforce-eager"
    if counted.faults:
        reason = f"no call to compare: {counted.faults} faults"
    lost = counted.hits > 0
    return Check(
        name=f"numbers:{kernel}",
        question=_QUESTION,
        status="failed" if lost else "skipped",
        expected="compared calls",
        seen="none",
        reason=f"{counted.hits} hits and no record of a comparison" if lost else reason,
    )
