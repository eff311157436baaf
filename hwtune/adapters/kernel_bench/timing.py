"""Two callables measured in alternating pairs, and their outputs held against the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from hwtune_kernels.reference import batched_paged_attention

from hwtune.domain.kernel_timing import Caches, CallCase, CallError, Sample

_SLICE = 16
"""Query tokens compared at the beginning, the middle and the end: float64 is slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """One kernel bound to its inputs."""

    name: str
    run: Callable[[], None]
    output: torch.Tensor
    """``[batch * query, num_heads, head_size]``, what ``run`` writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """One case's tensors, K and V as ``[num_blocks, page, num_kv_heads, head_size]``."""

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    block_table: torch.Tensor
    """``[batch, pages]`` int32, shuffled: neighbours in a sequence are no neighbours in memory."""
    scale: float


Clock = Callable[[Callable[[], None]], float]
"""Seconds of one call."""


def make_inputs(case: CallCase, device: str, seed: int = 0) -> Inputs:
    """Random Q, K and V of order 1 in shuffled pages."""
    source = torch.Generator(device="cpu").manual_seed(seed)
    dtype = getattr(torch, case.dtype)
    pages = -(-case.context // case.page)
    blocks = case.batch * pages + 1
    table = torch.randperm(blocks - 1, generator=source)[: case.batch * pages] + 1

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=source).to(dtype).to(device)

    shape = (blocks, case.page, case.num_kv_heads, case.head_size)
    return Inputs(
        query=random(case.batch * case.query, case.num_heads, case.head_size),
        keys=random(*shape),
        values=random(*shape),
        block_table=table.view(case.batch, pages).int().to(device),
        scale=case.head_size**-0.5,
    )


def measure(
    case: CallCase,
    inputs: Inputs,
    ours: Runner,
    baseline: Runner,
    *,
    clock: Clock,
    clock_name: str,
    caches: Caches,
    pairs: int,
) -> Sample:
    """Errors first, from outputs that held NaN before the call; then the pairs.

    The order alternates (ours first, baseline first …), so that a drift of the clock cancels.
    """
    wanted = _wanted(case, inputs)
    errors = [_error_of(runner, wanted) for runner in (baseline, ours)]
    errors.append(_error([(_rounded(case, inputs, part), part.exact) for part in wanted]))
    times: list[tuple[float, float]] = []
    for number in range(pairs):
        if number % 2:
            after = clock(ours.run)
            times.append((clock(baseline.run), after))
        else:
            before = clock(baseline.run)
            times.append((before, clock(ours.run)))
    return Sample(
        kernel=ours.name,
        baseline=baseline.name,
        case=case,
        caches=caches,
        clock=clock_name,
        pairs=tuple(times),
        baseline_error=errors[0],
        ours_error=errors[1],
        yardstick_error=errors[2],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Some rows of the output, and what they should be."""

    sequence: int
    rows: slice
    length: int
    """Tokens of the sequence up to and including the last of these rows."""
    exact: torch.Tensor


def _wanted(case: CallCase, inputs: Inputs) -> list[_Part]:
    parts = []
    for sequence in range(case.batch):
        for begin, end in _slices(case.query):
            rows = slice(sequence * case.query + begin, sequence * case.query + end)
            length = case.context - case.query + end
            exact = _reference(inputs, sequence, rows, length)
            parts.append(_Part(sequence=sequence, rows=rows, length=length, exact=exact))
    return parts


def _slices(query: int) -> Sequence[tuple[int, int]]:
    if query <= 3 * _SLICE:
        return [(0, query)]
    middle = query // 2
    return [(0, _SLICE), (middle, middle + _SLICE), (query - _SLICE, query)]


def _reference(inputs: Inputs, sequence: int, rows: slice, length: int) -> torch.Tensor:
    """Attention of some rows, as the newest tokens of the sequence that ends with them."""
    new = inputs.query[rows]
    wanted = torch.empty(new.shape, dtype=torch.float64, device=new.device)
    batched_paged_attention(
        new,
        inputs.keys,
        inputs.values,
        inputs.block_table[sequence : sequence + 1],
        torch.tensor([length]),
        inputs.scale,
        wanted,
        query_start=torch.tensor([0, len(new)]),
    )
    return wanted


def _error_of(runner: Runner, wanted: Sequence[_Part]) -> CallError:
    runner.output.fill_(float("nan"))
    runner.run()
    return _error([(runner.output[part.rows], part.exact) for part in wanted])


def _error(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> CallError:
    given = torch.cat([found.double() for found, _ in pairs])
    exact = torch.cat([wanted for _, wanted in pairs])
    difference = given - exact
    return CallError(
        max_abs=float(difference.abs().max()),
        relative_l2=float(difference.norm() / exact.norm()),
    )


def _rounded(case: CallCase, inputs: Inputs, part: _Part) -> torch.Tensor:
    """The yardstick: scores and sums in FP32, probabilities and output in the inputs' dtype."""
    pages = inputs.block_table[part.sequence, : -(-part.length // case.page)].long()
    group = case.num_heads // case.num_kv_heads
    keys, values = (
        cache[pages].flatten(0, 1)[: part.length].repeat_interleave(group, dim=1)
        for cache in (inputs.keys, inputs.values)
    )
    new = inputs.query[part.rows]
    scores = torch.einsum("qhd,khd->hqk", new.float(), keys.float()) * inputs.scale
    last = torch.arange(part.length - len(new), part.length, device=new.device)[:, None]
    hidden = torch.arange(part.length, device=new.device)[None, :] > last
    scores.masked_fill_(hidden, float("-inf"))
    weights = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
    mixed = torch.einsum("hqk,khd->hqd", weights.to(new.dtype).float(), values.float())
    return (mixed / weights.sum(dim=-1, keepdim=True)).to(new.dtype).transpose(0, 1)
