"""A kernel must be hit on every rank, not only somewhere."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hwtune.domain.check_kernels import is_call_reason, kernel_checks
from hwtune.domain.collecting import EvidenceCollector
from hwtune.domain.evidence import Evidence, KernelCount
from hwtune.domain.rank_hits import left_out, rank_tallies, seen_by_rank, silent_ranks
from hwtune.io.marker_sets import load_markers
from tests.unit.test_planning import plan

LINE = "({name} pid={pid}) INFO 11-30 06:51:47 [runtime.py:62] hwtune[n] layer bound name=l.3 x=1\n"
PAGE = "page 784 not a multiple of 64"


def count(process: int, outcome: Any, calls: int, reason: str = "", **more: Any) -> KernelCount:
    values: dict[str, Any] = {"nonce": "n", "kernel": "page_decode", "host": "a", **more}
    return KernelCount(process=process, outcome=outcome, reason=reason, calls=calls, **values)


def evidence(
    *counts: KernelCount, names: tuple[str, ...] = ("Worker_TP0", "Worker_TP1")
) -> Evidence:
    collector = EvidenceCollector(load_markers(), nonce="n")
    log = "".join(LINE.format(name=name, pid=pid) for pid, name in enumerate(names, start=1))
    collector.feed_files([("server.log", iter([(0, log.encode())]))])
    return collector.evidence(counts=counts, has_counters=True, plan=None, status=None, notes=())


def test_each_rank_is_named_as_vllm_names_it() -> None:
    ranks = rank_tallies(evidence(count(1, "hit", 3), count(2, "hit", 4)), "page_decode")
    assert seen_by_rank(ranks) == "7 calls (3 in Worker_TP0, 4 in Worker_TP1)"
    assert left_out(ranks, is_call_reason) is None


def test_processes_of_one_name_are_told_apart() -> None:
    found = evidence(count(1, "hit", 1), count(2, "hit", 2), names=("Worker", "Worker"))
    assert (
        seen_by_rank(rank_tallies(found, "page_decode")) == "3 calls (1 in Worker 1, 2 in Worker 2)"
    )


def test_a_process_that_has_no_rank_name_is_named_by_its_id() -> None:
    found = evidence(count(1, "hit", 1), count(2, "hit", 2), names=("Worker_TP0", "MainProcess"))
    seen = seen_by_rank(rank_tallies(found, "page_decode"))
    assert seen == "3 calls (1 in Worker_TP0, 2 in process 2)"


def test_one_process_is_not_named() -> None:
    ranks = rank_tallies(evidence(count(1, "hit", 3)), "page_decode")
    assert seen_by_rank(ranks) == "3 calls"


def test_a_rank_that_always_falls_back_is_left_out() -> None:
    ranks = rank_tallies(evidence(count(1, "hit", 3), count(2, "fallback", 9, PAGE)), "page_decode")
    assert left_out(ranks, is_call_reason) == f"no counted call in Worker_TP1: 9 fell back: {PAGE}"


@pytest.mark.parametrize(
    "idle", [count(2, "fallback", 9, "query longer than 1"), count(2, "fallback", 0, PAGE)]
)
def test_a_rank_that_got_no_such_request_is_not_left_out(idle: KernelCount) -> None:
    ranks = rank_tallies(evidence(count(1, "hit", 3), idle), "page_decode")
    assert left_out(ranks, is_call_reason) is None


def test_another_pipeline_stage_may_hold_layers_that_refuse() -> None:
    found = evidence(
        *(count(1, "hit", 3), count(2, "fallback", 9, "sliding window")),
        names=("Worker_PP0", "Worker_PP1"),
    )
    assert left_out(rank_tallies(found, "page_decode"), is_call_reason) is None


def test_one_process_id_on_two_nodes_is_two_ranks() -> None:
    found = evidence(count(1, "hit", 3), count(1, "fallback", 9, PAGE, host="b"))
    assert left_out(rank_tallies(found, "page_decode"), is_call_reason) is not None


@pytest.mark.parametrize(
    ("flags", "processes", "silent"),
    [
        (("-tp", "2"), (1, 2), False),
        (("-tp", "2"), (1,), True),
        (("--tensor-parallel-size=2",), (1, 2, 3), True),
        (("-tp", "2", "-dp", "2"), (1, 2), False),
        (("-dp", "2"), (1,), False),
    ],
)
def test_a_worker_without_the_plugin_is_missed(
    flags: tuple[str, ...], processes: tuple[int, ...], silent: bool
) -> None:
    found = evidence(*(count(pid, "hit", 3) for pid in processes))
    planned = dataclasses.replace(plan(), argv=("vllm", "serve", "m", *flags))
    found = dataclasses.replace(found, plan=planned)
    text = silent_ranks(rank_tallies(found, "page_decode"), found)
    assert (text is not None) is silent
    check = next(
        c for c in kernel_checks(found, planned.expect, require_hits=True) if "decode" in c.name
    )
    assert check.status == ("failed" if silent else "passed")
