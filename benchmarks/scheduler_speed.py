"""Steps per second of the simulated scheduler, beside vLLM's own on the same workload.

Scope: the scheduler and a model that only counts tokens, one core. Run it on a quiet machine:
``python benchmarks/scheduler_speed.py`` (vLLM's column only where vLLM is installed).
"""

from __future__ import annotations

import resource
import time
from dataclasses import replace
from random import Random

from hwtune.adapters.vllm.oracle import oracle
from hwtune.domain.errors import HwtuneError
from hwtune.domain.scheduler.simulation import Run
from hwtune.domain.scheduler.values import CacheGroup, Request, Scenario, SchedulerConfig

PAGE = 832


def workload(requests: int, mode: str) -> Scenario:
    """Prompts of 4K to 8K and 128 to 512 tokens of output on a hybrid model, 64 at a time."""
    rng = Random(0)
    aligned = mode == "align"
    state = CacheGroup(
        kind="mamba",
        block_size_tokens=PAGE if aligned else 40960,
        mode="align" if aligned else "none",
    )
    return Scenario(
        config=SchedulerConfig(
            max_num_batched_tokens=8192,
            max_num_seqs=64,
            max_model_len=40960,
            prefix_caching=aligned,
        ),
        num_blocks=2000,
        groups=(CacheGroup(kind="full", block_size_tokens=PAGE), state, state, state),
        requests=tuple(
            Request(
                id=f"r{number}",
                prompt_len=rng.randint(4096, 8192),
                output_len=rng.randint(128, 512),
            )
            for number in range(requests)
        ),
    )


def measured(scenario: Scenario) -> tuple[int, float]:
    """Steps and seconds, each step looked at once."""
    start = time.perf_counter()
    steps = sum(1 for _ in Run(scenario).steps())
    return steps, time.perf_counter() - start


def best(scenario: Scenario, repetitions: int = 3) -> tuple[int, float]:
    """The run that was disturbed least."""
    return min((measured(scenario) for _ in range(repetitions)), key=lambda run: run[1])


def main() -> None:
    """Prints both, and a long trace."""
    for mode in ("align", "none"):
        scenario = workload(64, mode)
        steps, seconds = best(scenario)
        print(f"64 requests, mode {mode}: {steps} steps, {steps / seconds:,.0f} steps/s here")
        print(f"  vLLM's own: {_own(scenario)}")
    steps, seconds = best(workload(640, "align"), 1)
    print(f"640 requests, 64 at a time: {steps} steps, {steps / seconds:,.0f} steps/s here")
    trace = workload(10_000, "align")
    arrivals = [replace(r, arrival_step=4 * i) for i, r in enumerate(trace.requests)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    steps, seconds = best(replace(trace, requests=tuple(arrivals)), 1)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"10,000 requests: {steps} steps in {seconds:.1f} s; memory grew by {grown:.0f} MiB")


def _own(scenario: Scenario) -> str:
    try:
        with oracle() as own:
            answer = own.play(scenario)
    except HwtuneError as error:
        return str(error)
    steps = len(answer["steps"])
    whole, alone = answer["run_ms"] / 1000, answer["schedule_ms"] / 1000
    return f"{steps / whole:,.0f} steps/s; {steps / alone:,.0f} steps/s in schedule() alone"


if __name__ == "__main__":
    main()
