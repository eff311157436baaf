"""Hits rank by rank: a sum over all processes hides the one that never ran the kernel."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hwtune.domain.evidence import Evidence, KernelCount
from hwtune.domain.planning import flag_value

_PID = re.compile(r"\bpid=(\d+)")
_RANK_NAME = "Worker"
"""In the names that vLLM gives ranks; before that a process is called by its module or not at all."""
_STAGE = re.compile(r"PP(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTally:
    """One process's calls of one kernel."""

    name: str
    """What vLLM calls the process in the log, e.g. ``Worker_TP1``; else ``process 4711``."""
    hits: int
    refusals: Mapping[str, int]
    """Calls that fell back or failed, by reason."""

    @property
    def stage(self) -> str:
        """Pipeline stage; ranks of different stages hold different layers."""
        found = _STAGE.search(self.name)
        return found[1] if found else ""


def rank_tallies(evidence: Evidence, kernel: str) -> tuple[RankTally, ...]:
    """One tally per process that counted the kernel, in the order of the names."""
    names = _names(evidence)
    found: dict[tuple[str, int], list[KernelCount]] = {}
    for count in evidence.counts:
        if count.kernel == kernel:
            found.setdefault((count.host, count.process), []).append(count)
    ranks = (_tally(names, host, pid, counts) for (host, pid), counts in found.items())
    return tuple(sorted(ranks, key=lambda rank: rank.name))


def silent_ranks(ranks: tuple[RankTally, ...], evidence: Evidence) -> str | None:
    """Why some rank must have served without the plugin, or None.

    Every rank of a tensor-parallel group sees the same calls, so a group counts as a whole or not
    at all: a data-parallel engine without a request does not, a worker without the plan cannot.
    """
    size = _tensor_parallel_size(evidence)
    stages: dict[str, int] = {}
    for rank in ranks:
        stages[rank.stage] = stages.get(rank.stage, 0) + 1
    short = next((count for count in stages.values() if count % size), None)
    if short is None:
        return None
    return (
        f"{short} of {-(-short // size) * size} tensor-parallel ranks counted calls: the others "
        "ran without the plugin (did the environment and the run directory reach them?)"
    )


def _tensor_parallel_size(evidence: Evidence) -> int:
    argv = () if evidence.plan is None else evidence.plan.argv
    given = flag_value(argv, "--tensor-parallel-size") or flag_value(argv, "-tp")
    return int(given) if given and given.isdigit() and int(given) else 1


def _names(evidence: Evidence) -> dict[int, str]:
    names: dict[int, str] = {}
    for mark in evidence.marks:
        text = mark.place.process or ""
        pid = _PID.search(text)
        if pid and _RANK_NAME in text:
            names[int(pid[1])] = text[: pid.start()].strip()
    shared = {name for name, uses in Counter(names.values()).items() if uses > 1}
    # Data-parallel engines call their workers alike.
    return {pid: f"{name} {pid}" if name in shared else name for pid, name in names.items()}


def _tally(names: dict[int, str], host: str, pid: int, counts: list[KernelCount]) -> RankTally:
    refusals: dict[str, int] = {}
    for count in counts:
        if count.outcome in ("fallback", "fault") and count.calls:
            refusals[count.reason] = refusals.get(count.reason, 0) + count.calls
    return RankTally(
        name=names.get(pid) or f"process {pid}",
        hits=sum(count.calls for count in counts if count.outcome == "hit"),
        refusals=refusals,
    )


def seen_by_rank(ranks: tuple[RankTally, ...]) -> str:
    """``8 calls``, and what each process had when there are several."""
    text = f"{sum(rank.hits for rank in ranks)} calls"
    if len(ranks) < 2:
        return text
    return f"{text} ({', '.join(f'{rank.hits} in {rank.name}' for rank in ranks)})"


def left_out(ranks: tuple[RankTally, ...], is_call_reason: Callable[[str], bool]) -> str | None:
    """Which ranks never ran a kernel that others of their stage run, and why; or None.

    A rank that was only asked for other shapes (a data-parallel engine without such a request) is
    not left out: only what another request would not change counts.
    """
    hit = {rank.stage for rank in ranks if rank.hits}
    found = []
    for rank in ranks:
        reasons = [reason for reason in rank.refusals if not is_call_reason(reason)]
        if not rank.hits and rank.stage in hit and reasons:
            calls = rank.refusals[reasons[0]]
            found.append(f"no counted call in {rank.name}: {calls} fell back: {reasons[0]}")
    return "; ".join(found) or None
