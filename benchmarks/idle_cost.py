"""What the plugin costs decoding when every kernel falls back, against vLLM's own path.

Scope: decode steps of the tiny model on the CPU, one sequence, in one process and on one thread.
The engine is built with the plugin; from step to step the attention layers' ``forward`` is switched
between the plugin's and that of the vLLM class that it extends, in the order A B B A, so both arms
are the same process, weights, cache, page and request. The plan's kernels refuse every call, and
each refusal is counted. A block is 64 steps; its ratio is B's time over A's. A second comparison,
vLLM against itself, shows what the method resolves. Times are wall time and the process's CPU time,
which leaves out what other programs on the machine took.

    python benchmarks/idle_cost.py --seconds 150 [--save idle.jsonl]
    python benchmarks/idle_cost.py --report idle.jsonl

Repeat it (each repetition is a process of its own, with its own memory layout) and report over all.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODEL = Path(__file__).parents[1] / "examples" / "tiny-qwen3.5"
FLAGS = ("--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "4096")
PROMPT_TOKENS, OUTPUT_TOKENS = 32, 2000
WARM_UP_STEPS = 200
BLOCK_STEPS = 64
COMPARISONS = ("plugin / vLLM", "vLLM / vLLM")
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
Ratios = dict[str, list[float]]
"""By comparison and clock, e.g. ``plugin / vLLM, cpu time``."""


def main() -> None:
    """Measures, or reports what was saved."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--save", type=Path, help="append the blocks to this file")
    parser.add_argument("--report", type=Path, help="only report a file of saved blocks")
    arguments = parser.parse_args()
    if arguments.report is None:
        ratios = measure(arguments.seconds)
        if arguments.save is not None:
            with arguments.save.open("a", encoding="utf-8") as file:
                file.write(json.dumps(ratios) + "\n")
        repetitions = [ratios]
    else:
        lines = arguments.report.read_text(encoding="utf-8").splitlines()
        repetitions = [json.loads(line) for line in lines]
    report(repetitions)


def report(repetitions: list[Ratios]) -> None:
    """Prints the ratio of times of each comparison with its 95 % interval."""
    count = len(repetitions)
    print("scope: decode steps of the tiny model on the CPU, every kernel falling back")
    print(f"{count} processes; 95 % interval over {'processes' if count > 2 else 'blocks'}")
    for name in repetitions[0]:
        blocks = [math.log(ratio) for one in repetitions for ratio in one[name]]
        means = [sum(map(math.log, one[name])) / len(one[name]) for one in repetitions]
        center, half = interval(means if count > 2 else blocks)
        low, high = math.exp(center - half), math.exp(center + half)
        print(f"{name}: {math.exp(center):.4f} [{low:.4f}, {high:.4f}]  {len(blocks)} blocks")


def interval(sample: list[float]) -> tuple[float, float]:
    """Mean and half width of its 95 % confidence interval (Student's t)."""
    from scipy import stats

    count = len(sample)
    mean = sum(sample) / count
    variance = sum((value - mean) ** 2 for value in sample) / (count - 1)
    return mean, float(stats.t.ppf(0.975, count - 1)) * math.sqrt(variance / count)


def measure(seconds: float) -> Ratios:
    """Ratios of all blocks that fit into the time."""
    with tempfile.TemporaryDirectory() as folder:
        engine, switch = build(Path(folder))
        step = decoder(engine)
        for number in range(WARM_UP_STEPS):
            switch(number % 2 == 0)
            step()
        ratios: Ratios = {f"{name}, {clock} time": [] for name in COMPARISONS for clock in CLOCKS}
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for name, plugin in zip(COMPARISONS, (True, False), strict=True):
                for clock, ratio in block(step, switch, plugin).items():
                    ratios[f"{name}, {clock} time"].append(ratio)
        blocks = len(ratios[f"{COMPARISONS[0]}, cpu time"])
        require_only_fallbacks(Path(folder), blocks * BLOCK_STEPS // 2)
    return ratios


def block(
    step: Callable[[], None], switch: Callable[[bool], None], plugin: bool
) -> dict[str, float]:
    """Steps in the order A B B A -> B's time over A's; A is vLLM, B the plugin or vLLM again."""
    totals = {clock: [0.0, 0.0] for clock in CLOCKS}
    for second in (False, True, True, False) * (BLOCK_STEPS // 4):
        switch(plugin and second)
        before = {clock: read() for clock, read in CLOCKS.items()}
        step()
        for clock, read in CLOCKS.items():
            totals[clock][second] += read() - before[clock]
    return {clock: b / a for clock, (a, b) in totals.items()}


def decoder(engine: Any) -> Callable[[], None]:  # noqa: ANN401 - vLLM has no types here
    """One decode step of a request that begins anew, untimed, when it has ended."""
    from vllm import SamplingParams

    sampling = SamplingParams(max_tokens=OUTPUT_TOKENS, temperature=0, ignore_eos=True)
    prompt = {"prompt_token_ids": [10 + i * 37 % 400 for i in range(PROMPT_TOKENS)]}
    llm = engine.llm_engine
    requests = iter(range(1_000_000))

    def step() -> None:
        if not llm.has_unfinished_requests():
            llm.add_request(str(next(requests)), prompt, sampling)
            llm.step()
        llm.step()

    return step


def build(folder: Path) -> tuple[Any, Callable[[bool], None]]:
    """The engine with the plugin in it, and what switches its layers (True: the plugin's class)."""
    write_falling_back_plan(folder)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import LLM

    engine = LLM(
        model=str(MODEL),
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=4096,
        max_num_seqs=1,
        block_size=128,
        enable_prefix_caching=False,
        distributed_executor_backend="uni",
        async_scheduling=False,
    )
    layers = engine.llm_engine.vllm_config.compilation_config.static_forward_context.values()
    classes = {type(layer.impl) for layer in layers if hasattr(layer, "impl")}
    ours = [own for own in classes if own.__name__.startswith("Hwtune")]
    if not ours:
        message = "the plugin is not in this engine; is hwtune installed in this environment?"
        raise SystemExit(message)

    on = [True]
    for own in ours:
        own.forward = switched(own.forward, _vllms(own).forward, on)
    return engine, lambda plugin: on.__setitem__(0, plugin)


def switched(
    plugins: Callable[..., Any], vllms: Callable[..., Any], on: list[bool]
) -> Callable[..., Any]:
    """Either of two methods; the class stays as it is, so that Python forgets nothing of it."""

    def forward(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as vLLM calls it
        return (plugins if on[0] else vllms)(*args, **kwargs)

    return forward


def _vllms(own: type[Any]) -> type[Any]:
    """The class of vLLM's that the plugin's extends."""
    return next(base for base in own.__mro__ if base.__module__.startswith("vllm."))


def write_falling_back_plan(folder: Path) -> None:
    """A plan with vLLM's own page and two kernels that take nothing; sets HWTUNE_PLAN."""
    from hwtune.adapters.vllm.planning import plan_server
    from hwtune.io.plans import write_plan

    text = (MODEL / "every-shape.toml").read_text(encoding="utf-8")
    text = text.replace("required_alignment_tokens = 64", "required_alignment_tokens = 128")
    text = text.replace("single_sequence = true", "min_context_len = 4000000")
    profile = folder / "falls-back.toml"
    profile.write_text(text, encoding="utf-8")
    plan = plan_server(str(MODEL), str(profile), "candidate", FLAGS)
    os.environ["HWTUNE_PLAN"] = str(write_plan(plan, folder))


def require_only_fallbacks(run_dir: Path, plugin_steps: int) -> None:
    """Stops without a figure when the plugin's steps were not what the figure is said to be of."""
    from hwtune.io.counters import read_counters

    counts = read_counters(run_dir)
    kernels = len({count.kernel for count in counts})
    fell_back = sum(count.calls for count in counts if count.outcome == "fallback")
    if any(count.calls for count in counts if count.outcome != "fallback"):
        message = f"a kernel ran or raised: {counts}"
        raise SystemExit(message)
    if fell_back < plugin_steps * kernels:  # the tiny model has one attention layer
        message = f"only {fell_back} refusals were counted in {plugin_steps} steps"
        raise SystemExit(message)


if __name__ == "__main__":
    main()
