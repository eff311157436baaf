"""Tries a kernel's launch constants: on the GPU that is here, or by compiling for one that is not."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hwtune.adapters.kernel_static import ask, require
from hwtune.adapters.vllm.discovery import installed_version
from hwtune.domain.errors import HwtuneError, InputError, MissingDependencyError
from hwtune.domain.kernel_static import StaticRow, StaticShape
from hwtune.domain.kernel_sweep import (
    Sweep,
    Trial,
    compiled_trial,
    ranked,
    refinements,
    timed_trial,
)
from hwtune.domain.kernel_timing import CallCase, judge_sample

_PAIRS = 15


def compile_sweep(
    target: str,
    shape: StaticShape,
    implementation: str,
    tunings: Sequence[dict[str, int]],
    processes: int = 2,
) -> Sweep:
    """Every tuning compiled for the target and scored by its machine code. Needs no device.

    Args:
        target: a name of ``hwtune_kernels.static``'s table, e.g. ``sm_90``.
        shape: the layer and its page.
        implementation: ``decode.triton`` or ``prefill.triton``.
        tunings: the launch constants to try; a few seconds each.
        processes: how many compile at the same time.

    Raises:
        MissingDependencyError: torch, Triton or vLLM (for the baseline) is not installed.
        InputError: an unknown target, or a shape that the kernel does not take.
        ExternalFailureError: the compiler died.
    """
    require()
    shares = [list(tunings[start::processes]) for start in range(processes)]
    shares = [share for share in shares if share]
    requests: list[dict[str, Any]] = [
        {
            "targets": [target],
            "shape": dataclasses.asdict(shape),
            "implementation": implementation,
            "sweep": share,
        }
        for share in shares
    ]
    with ThreadPoolExecutor(max_workers=processes) as pool:
        answers = list(pool.map(_answer, requests))
    trials: list[Trial] = []
    baseline = StaticRow(**answers[0]["swept"][0])
    for share, answer in zip(shares, answers, strict=True):
        pairs = zip(share, answer["swept"][1:], strict=True)
        trials += [_compiled(tuning, found, baseline) for tuning, found in pairs]
    versions = f"Triton {answers[0]['triton']}, vLLM {installed_version('vllm') or '?'}"
    return Sweep(
        implementation=implementation,
        shape=_text(shape),
        page=shape.page,
        where=target,
        scored_by=f"machine code ({versions}), not time",
        trials=ranked(trials),
        baseline=baseline,
        notes=tuple(note for note in answers[0]["notes"].values() if note),
    )


def _compiled(tuning: dict[str, int], found: str | dict[str, Any], baseline: StaticRow) -> Trial:
    if isinstance(found, str):
        return Trial(tuning=tuning, score=None, note=found)
    return compiled_trial(tuning, StaticRow(**found), baseline)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    answer = ask(request)
    for key, error in (
        ("missing", MissingDependencyError),
        ("no_baseline", MissingDependencyError),
    ):
        if key in answer:
            message = f"the sweep cannot compile: {answer[key]}"
            raise error(message)
    if "refused" in answer:
        raise InputError(answer["refused"])
    return answer


def time_sweep(
    cases: Sequence[CallCase],
    implementation: str,
    tunings: Sequence[dict[str, int]],
    device: str,
    pairs: int = _PAIRS,
) -> Sweep:
    """Every tuning timed on the GPU that is here, against vLLM's generic kernel.

    Each is captured in a graph and replayed, with L2 warm and cold; the score is of the cold times,
    because a model's layers evict one another. Not run on a GPU yet.

    Raises:
        HwtuneError: a package is missing, or the device refused the baseline.
    """
    trials = [_timed(cases, implementation, tuning, pairs) for tuning in tunings]
    best = ranked(trials)[0]
    if best.score is not None:
        more = refinements(implementation, best.tuning)
        trials += [_timed(cases, implementation, tuning, pairs) for tuning in more]
    first = cases[0]
    return Sweep(
        implementation=implementation,
        shape=f"{first.num_heads}/{first.num_kv_heads}/{first.head_size}",
        page=first.page,
        where=device,
        scored_by=f"time on {device}: graph replay, L2 cold, {pairs} pairs per case",
        trials=ranked(trials),
    )


def _timed(
    cases: Sequence[CallCase], implementation: str, tuning: dict[str, int], pairs: int
) -> Trial:
    from hwtune.adapters.kernel_bench.run import samples

    times: list[tuple[str, float, float | None]] = []
    wrong = ""
    try:
        for case in cases:
            baseline = None
            for sample in samples([case], [implementation], {implementation: tuning}, pairs):
                baseline = baseline or sample.baseline
                if sample.baseline != baseline:
                    break  # the first is vLLM's kernel as it is; the rest would cost time
                row = judge_sample(sample)
                wrong = wrong or (row.verdict if row.speed_up is None else "")
                cold = sample.caches == "cold"
                name = f"{case.query}/{case.context} {sample.caches}"
                times.append((name, row.ours_us or 0.0, row.speed_up if cold else None))
    except HwtuneError as error:
        return Trial(tuning=tuning, score=None, note=str(error))
    return timed_trial(tuning, times, wrong)


def check_tuning(implementation: str, tuning: Mapping[str, int]) -> None:
    """Raises InputError for constants that the kernel cannot be launched with."""
    from hwtune_kernels.registry import read_tuning

    try:
        read_tuning(implementation, tuning)
    except ValueError as error:
        message = f"{implementation}: {error}"
        raise InputError(message) from None


def _text(shape: StaticShape) -> str:
    return f"{shape.num_heads}/{shape.num_kv_heads}/{shape.head_size}"
