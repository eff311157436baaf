"""Which launch constants are tried, and which of those tried is called the best."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hwtune.adapters import kernel_sweep
from hwtune.domain.errors import InputError, UsageError
from hwtune.domain.kernel import KernelConditions, KernelSpec, TunedFor, tuning_for
from hwtune.domain.kernel_static import StaticRow
from hwtune.domain.kernel_sweep import (
    Trial,
    candidates,
    compiled_trial,
    issue_slots,
    ranked,
    refinements,
    timed_trial,
)
from hwtune.domain.kernel_timing import Caches, CallCase, CallError, Sample

BASE = {"tile_tokens": 32, "num_warps": 4, "num_stages": 2, "programs": 608, "max_segments": 64}
ROW = StaticRow(
    operation="decode",
    kernel="page_decode",
    ours=True,
    target="gfx942",
    rows=6,
    tile_tokens=16,
    num_warps=4,
    num_stages=2,
    registers=120,
    spill_bytes=0,
    shared_bytes=0,
    loop_instructions=145,
    wide_loads=4,
    narrow_loads=0,
    divisions=0,
    matrix=8,
    per_16_tokens=145.0,
    warp_work=6042.0,
)


def test_the_start_comes_first_and_what_differs_in_least_next() -> None:
    tried = candidates("decode.triton", 832, BASE, 12)
    assert tried[0] == BASE
    assert len(tried) == 12
    changed = [sum(trial[key] != BASE[key] for key in BASE) for trial in tried]
    assert changed == sorted(changed)
    assert all(trial["programs"] == 608 for trial in tried)


@pytest.mark.parametrize(("page", "tiles"), [(784, {16}), (800, {16, 32}), (832, {16, 32, 64})])
def test_a_tile_is_tried_once_as_it_is_launched(page: int, tiles: set[int]) -> None:
    tried = candidates("decode.triton", page, BASE, 1000)
    assert {trial["tile_tokens"] for trial in tried} == tiles
    assert len({tuple(trial.items()) for trial in tried}) == len(tried) == 12 * len(tiles)


def test_without_a_profile_the_grid_still_has_a_start() -> None:
    tried = candidates("prefill.triton", 832, {}, 3)
    assert tried[0] == {"tile_tokens": 32, "num_warps": 8, "rows": 128, "num_stages": 2}
    with pytest.raises(UsageError, match=r"prefill\.cpu: nothing to tune"):
        candidates("prefill.cpu", 832, {}, 3)


def test_warps_beyond_the_schedulers_cost_and_idle_schedulers_too() -> None:
    """Two decodes share a processor of four schedulers, so two warps each keep all four busy."""

    def slots(warps: int, per_16: float) -> float:
        row = dataclasses.replace(ROW, num_warps=warps, warp_work=per_16 * warps)
        return issue_slots(row)

    assert slots(2, 178) == 178 / 2
    assert slots(4, 145) == 145
    assert slots(1, 258) == 258 / 2
    assert min((slots(w, n), w) for w, n in ((1, 258), (2, 178), (4, 145)))[1] == 2


def test_registers_limit_how_many_programs_share_a_processor() -> None:
    small = dataclasses.replace(
        ROW, operation="prefill", target="sm_90", num_warps=2, registers=64, warp_work=100.0
    )
    assert issue_slots(small) == 25.0
    large = dataclasses.replace(small, num_warps=1, registers=65536)
    assert issue_slots(large) == 100.0


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({}, ""),
        ({"spill_bytes": 16}, "spills 16 bytes"),
        ({"narrow_loads": 2}, "2 narrow loads"),
        ({"divisions": 1}, "1 instructions of integer division"),
        ({"warp_work": 9918.0}, "more work than the generic kernel"),
    ],
    ids=str,
)
def test_a_compiled_trial_says_what_speaks_against_it(change: dict[str, Any], note: str) -> None:
    generic = dataclasses.replace(ROW, ours=False, warp_work=9917.0, registers=124)
    trial = compiled_trial({}, dataclasses.replace(ROW, **change), generic)
    assert trial.note == note
    if not change:
        assert trial.score == pytest.approx(6042 / 9917)


def test_a_good_trial_beats_a_better_score_with_a_fault_and_failures_come_last() -> None:
    trials = [
        Trial(tuning={"a": 1}, score=None, note="does not compile"),
        Trial(tuning={"a": 2}, score=0.1, note="spills 4 bytes"),
        Trial(tuning={"a": 3}, score=0.4),
        Trial(tuning={"a": 4}, score=0.3),
    ]
    assert [trial.tuning["a"] for trial in ranked(trials)] == [4, 3, 2, 1]


def test_only_cold_times_make_the_score() -> None:
    trial = timed_trial({}, [("warm", 1.0, None), ("cold", 9.0, 2.0), ("cold", 9.0, 8.0)], "")
    assert trial.score == pytest.approx(0.25)
    assert timed_trial({}, [("cold", 9.0, 2.0)], "no ratio").score is None


def test_a_device_also_decides_how_finely_sequences_are_cut() -> None:
    assert [t["programs"] for t in refinements("decode.triton", BASE)] == [304, 1216]
    assert refinements("prefill.triton", BASE) == ()


CASE = CallCase(
    num_heads=24, num_kv_heads=4, head_size=256, page=832, batch=1, query=1, context=8192
)
SMALL = CallError(max_abs=1e-3, relative_l2=1e-3)


def test_a_sweep_on_a_device_takes_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timing is a stand-in: two warps take half the time, one warp is refused."""

    def samples(cases: Any, kernels: Any, tunings: Any, pairs: int) -> Any:
        tuning = tunings["decode.triton"]
        if tuning["num_warps"] == 1:
            message = "the device refused"
            raise InputError(message)
        ours = {2: 5e-6, 4: 10e-6, 8: 20e-6}[tuning["num_warps"]]
        ours *= 0.9 if tuning.get("programs") == 304 else 1.0
        for baseline in ("vLLM unified attention", "another"):
            states: tuple[tuple[Caches, int], ...] = (("warm", 1), ("cold", 2))
            for caches, factor in states:
                assert baseline != "another" or caches == "warm", "the others need no times"
                yield Sample(
                    kernel="decode.triton",
                    baseline=baseline,
                    case=CASE,
                    caches=caches,
                    clock="graph replay",
                    pairs=((20e-6 * factor, ours * factor),) * pairs,
                    ours_error=SMALL,
                    baseline_error=SMALL,
                    yardstick_error=SMALL,
                )

    monkeypatch.setattr("hwtune.adapters.kernel_bench.run.samples", samples)
    tunings = candidates("decode.triton", 784, BASE, 100)
    sweep = kernel_sweep.time_sweep([CASE], "decode.triton", tunings, "a GPU")
    assert sweep.best is not None
    assert (sweep.best.tuning["num_warps"], sweep.best.tuning["programs"]) == (2, 304)
    assert sweep.best.score == pytest.approx(0.9 * 0.25)
    assert [name for name, _ in sweep.best.microseconds] == ["1/8192 warm", "1/8192 cold"]
    assert [time for _, time in sweep.best.microseconds] == pytest.approx([4.5, 9.0])
    assert sweep.trials[-1].note == "the device refused"


def test_special_constants_are_laid_over_the_kernels() -> None:
    spec = KernelSpec(
        name="page_decode",
        implementation="decode.triton",
        when=KernelConditions(min_query_len=1, max_query_len=1),
        source="test",
        tuning={"num_warps": 4, "num_stages": 3},
        tuned=(
            TunedFor(source="test", tuning={"num_warps": 2}, page_not_multiple_of=32),
            TunedFor(source="test", tuning={"num_stages": 1}, head_sizes=(64,)),
        ),
    )
    assert tuning_for(spec, 256, 832) == {"num_warps": 4, "num_stages": 3}
    assert tuning_for(spec, 256, 784) == {"num_warps": 2, "num_stages": 3}
    assert tuning_for(spec, 64, 784) == {"num_warps": 2, "num_stages": 1}
    assert spec.tuning == {"num_warps": 4, "num_stages": 3}, "the plan's own stays as it is"
