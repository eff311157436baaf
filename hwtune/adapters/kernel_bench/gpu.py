"""Our Triton kernels against vLLM's generic ones, on a GPU or in Triton's interpreter.

On a GPU every kernel is captured in a graph and replayed, as vLLM runs its decode, so that the cost
of launching stands in no number. Times have been taken on no GPU yet; the calls and the comparison
with the reference run in Triton's interpreter, in the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from hwtune_kernels import generic
from hwtune_kernels.triton_call import INTERPRETED

from hwtune.adapters.kernel_bench.timing import Clock, Inputs, Runner
from hwtune.domain.kernel_timing import CallCase

IMPLEMENTATIONS = {"prefill": "prefill.triton", "decode": "decode.triton"}
_FLUSH_BYTES = 512 << 20
"""Larger than any L2 (H200: 50 MB, MI300X: 256 MB with Infinity Cache)."""
_WARM_REPLAYS = 10
_CAPTURE_WARM_UPS = 3


def is_interpreted() -> bool:
    """Whether the kernels run in Triton's interpreter: right or wrong, but no times."""
    return bool(INTERPRETED)


def ours(case: CallCase, inputs: Inputs, implementation: str, kernel: Callable[..., Any]) -> Runner:
    """An implementation over the case's batch, called as the registry says."""
    output = torch.empty_like(inputs.query)
    lengths, starts = _lengths(case, inputs)
    more = {}
    if getattr(kernel, "wants_max_context_len", False):
        more["max_context_len"] = case.context

    def run() -> None:
        kernel(
            inputs.query,
            inputs.keys,
            inputs.values,
            inputs.block_table,
            lengths,
            inputs.scale,
            output,
            query_start=starts,
            max_query_len=case.query,
            **more,
        )

    return Runner(name=implementation, run=run, output=output)


def baselines(case: CallCase, inputs: Inputs) -> list[Runner]:
    """vLLM's generic kernel as it is; for decode also with 64 segments, and with descriptors.

    Raises:
        GenericUnavailableError: no vLLM, or one whose kernel the loader does not know.
    """
    variants: list[tuple[str, dict[str, Any]]] = [("vLLM unified attention", {})]
    if case.operation == "decode":
        variants.append(("vLLM unified attention, 64 segments", {"segments": 64}))
    if not is_interpreted():
        variants.append(
            ("vLLM unified attention, tensor descriptors", {"tensor_descriptors": True})
        )
    return [_generic(case, inputs, name, options) for name, options in variants]


def _generic(case: CallCase, inputs: Inputs, name: str, options: dict[str, Any]) -> Runner:
    output = torch.empty_like(inputs.query)
    lengths, starts = _lengths(case, inputs)
    launches = generic.launches(
        inputs.query,
        inputs.keys,
        inputs.values,
        inputs.block_table,
        lengths,
        inputs.scale,
        output,
        query_start=starts,
        max_query_len=case.query,
        **options,
    )

    def run() -> None:
        for launch in launches:
            launch.run()

    return Runner(name=name, run=run, output=output)


def _lengths(case: CallCase, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    device = inputs.query.device
    lengths = torch.full((case.batch,), case.context, dtype=torch.int32, device=device)
    starts = torch.arange(case.batch + 1, dtype=torch.int32, device=device) * case.query
    return lengths, starts.int()


def captured(runner: Runner) -> Callable[[], None]:
    """The runner's work as one graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_CAPTURE_WARM_UPS):
            runner.run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        runner.run()
    replay: Callable[[], None] = graph.replay
    return replay


def warm_clock(call: Callable[[], None]) -> float:
    """Seconds per call, over several in a row: K and V stay in L2 where they fit."""
    return _between_events([call] * _WARM_REPLAYS) / _WARM_REPLAYS


def cold_clock() -> Clock:
    """Seconds of one call right after something larger than L2 was written."""
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device="cuda")

    def clock(call: Callable[[], None]) -> float:
        flush.zero_()
        return _between_events([call])

    return clock


def _between_events(calls: Sequence[Callable[[], None]]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for call in calls:
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3
