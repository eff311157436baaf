"""The static table: our kernels and vLLM's generic ones, compiled for the same target and shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from hwtune_kernels import generic
from hwtune_kernels.page_decode import spec as decode_spec
from hwtune_kernels.page_decode import triton as decode
from hwtune_kernels.prefill import spec as prefill_spec
from hwtune_kernels.prefill import triton as prefill
from hwtune_kernels.static.compiling import TARGETS, Compiled, Target, compile_launch
from hwtune_kernels.triton_call import Launch

PREFILL_TOKENS = 512
SWEPT = {"decode.triton": "page_decode", "prefill.triton": "tiled_prefill"}
"""Implementations with launch constants -> the kernel's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One attention layer and its page."""

    num_heads: int = 24
    num_kv_heads: int = 4
    head_size: int = 256
    page: int = 832
    dtype: str = "bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One compiled kernel. Counts of its inner loop are per warp."""

    operation: str
    """``decode`` or ``prefill``: only rows of one operation can be compared."""
    kernel: str
    ours: bool
    target: str
    rows: int
    """Rows of Q (tokens times query heads of a KV head) that one program computes."""
    tile_tokens: int
    num_warps: int
    num_stages: int
    registers: int
    spill_bytes: int
    shared_bytes: int
    loop_instructions: int
    wide_loads: int
    narrow_loads: int
    divisions: int
    matrix: int
    per_16_tokens: float
    """Instructions of one warp per 16 tokens of K and V."""
    warp_work: float
    """Instructions of all warps per thousand pairs of a row and a key."""


def rows(target_name: str, shape: Shape, tunings: Mapping[str, Mapping[str, int]]) -> Iterator[Row]:
    """One row per kernel, as it is compiled.

    Args:
        target_name: a key of :data:`hwtune_kernels.static.compiling.TARGETS`, checked before.
        shape: the layer.
        tunings: implementation -> its tuning table; absent ones have the kernel's defaults.

    Raises:
        ValueError: a shape or tuning that a kernel does not take.
        GenericUnavailableError: there is no vLLM to take the baseline from.
    """
    target = TARGETS[target_name]
    _check(shape)
    group = shape.num_heads // shape.num_kv_heads
    one, many = _call(shape, 1), _call(shape, PREFILL_TOKENS)
    fast: Any = decode_spec.tuning_of(tunings.get("decode.triton", {"num_stages": target.stages}))
    tall: Any = prefill_spec.tuning_of(tunings.get("prefill.triton", {}))
    generic_rows = max(16 // group, 1) * group
    made: list[tuple[str, str, bool, int, Callable[[], tuple[Launch, ...]]]] = [
        (
            *("decode", "vLLM generic, 16 segments", False, group),
            lambda: generic.launches(**one, max_query_len=1),
        ),
        (
            *("decode", "vLLM generic, tensor descriptors", False, group),
            lambda: generic.launches(**one, max_query_len=1, tensor_descriptors=True),
        ),
        (
            *("decode", "vLLM ROCM_ATTN fallback", False, group),
            lambda: generic.rocm_launches(**one) if target.backend == "hip" else (),
        ),
        ("decode", "page_decode exact", True, group, lambda: decode.launches(**one, exact=True)),
        ("decode", "page_decode", True, group, lambda: decode.launches(**one, tuning=fast)),
        (
            *("prefill", "vLLM generic", False, generic_rows),
            lambda: generic.launches(**many, max_query_len=PREFILL_TOKENS),
        ),
        (
            *("prefill", "tiled_prefill", True, tall.rows // group * group),
            lambda: prefill.launches(**many, max_query_len=PREFILL_TOKENS, tuning=tall),
        ),
    ]
    for operation, kernel, ours, height, launches in made:
        for launch in launches()[:1]:  # the merge of segments has no loop
            compiled = compile_launch(launch, target)
            tile = launch.constants.get("TILE") or launch.constants.get("TILE_SIZE")
            tile = tile or launch.constants["BLOCK_SIZE"]
            yield _row(operation, kernel, ours, target_name, height, tile, compiled)


def sweep(
    target_name: str, shape: Shape, implementation: str, tunings: Sequence[Mapping[str, int]]
) -> Iterator[Row | str]:
    """The baseline's row, then one per tuning: its row, or in a line why it has none.

    Args:
        target_name: as for :func:`rows`.
        shape: the layer.
        implementation: ``decode.triton`` or ``prefill.triton``.
        tunings: tables of launch constants.

    Raises:
        ValueError: a shape that no tuning can change, or an implementation without tuning.
        GenericUnavailableError: there is no vLLM to take the baseline from.
    """
    if implementation not in SWEPT:
        message = f"{implementation} cannot be swept; known: {', '.join(SWEPT)}"
        raise ValueError(message)
    _check(shape)
    target, group = TARGETS[target_name], shape.num_heads // shape.num_kv_heads
    operation = implementation.partition(".")[0]
    tokens = 1 if operation == "decode" else PREFILL_TOKENS
    call = _call(shape, tokens) | {"max_query_len": tokens}
    theirs = generic.launches(**call)[0]
    height = group if tokens == 1 else max(16 // group, 1) * group
    names = (operation, "vLLM generic", False, target_name, height, theirs.constants["TILE_SIZE"])
    yield _row(*names, compile_launch(theirs, target))
    for values in tunings:
        try:
            yield _tuned(implementation, values, call, target_name, group)
        except Exception as error:  # noqa: BLE001 - a compiler's failure is an answer too
            yield " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _tuned(
    implementation: str,
    values: Mapping[str, int],
    call: Mapping[str, Any],
    target_name: str,
    group: int,
) -> Row:
    operation, kernel = implementation.partition(".")[0], SWEPT[implementation]
    tuning: Any
    if operation == "decode":
        tuning, height = decode_spec.tuning_of(values), group
        launch = decode.launches(**call, tuning=tuning)[0]
    else:
        tuning = prefill_spec.tuning_of(values)
        height = tuning.rows // group * group
        launch = prefill.launches(**call, tuning=tuning)[0]
    compiled = compile_launch(launch, TARGETS[target_name])
    return _row(operation, kernel, True, target_name, height, launch.constants["TILE"], compiled)


def _check(shape: Shape) -> None:
    """Raises ValueError before anything is compiled that our kernels do not take."""
    reason = decode_spec.refusal(
        query_len=1,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_size=shape.head_size,
        block_size=shape.page,
    )
    if reason is not None:
        raise ValueError(reason)


def _row(
    operation: str,
    kernel: str,
    ours: bool,
    target: str,
    height: int,
    tile: int,
    compiled: Compiled,
) -> Row:
    loop = compiled.loop
    if loop is None:
        message = f"{kernel} for {target}: no loop with matrix instructions in the machine code"
        raise ValueError(message)
    return Row(
        operation=operation,
        kernel=kernel,
        ours=ours,
        target=target,
        rows=height,
        tile_tokens=tile,
        num_warps=compiled.num_warps,
        num_stages=compiled.num_stages,
        registers=compiled.resources.registers,
        spill_bytes=compiled.resources.spill_bytes,
        shared_bytes=compiled.shared_bytes,
        loop_instructions=loop.instructions,
        wide_loads=loop.wide_loads,
        narrow_loads=loop.narrow_loads,
        divisions=loop.divisions,
        matrix=loop.matrix,
        per_16_tokens=loop.instructions * 16 / tile,
        warp_work=loop.instructions * compiled.num_warps / (height * tile) * 1000,
    )


def _call(shape: Shape, num_tokens: int) -> dict[str, Any]:
    """Arguments without memory: dtypes and strides are all that a compiler sees."""
    dtype = getattr(torch, shape.dtype)
    meta = torch.device("meta")
    size, heads = shape.head_size, shape.num_kv_heads
    both = torch.empty(64, shape.page, heads, 2 * size, dtype=dtype, device=meta)
    query = torch.empty(num_tokens, shape.num_heads, size, dtype=dtype, device=meta)
    integers = torch.empty(64, dtype=torch.int32, device=meta)
    return {
        "query": query,
        "key_pages": both[..., :size],
        "value_pages": both[..., size:],
        "block_table": integers.view(1, 64),
        "seq_lens": integers[:1],
        "scale": size**-0.5,
        "output": torch.empty_like(query),
        "query_start": integers[:2],
    }


def check_target(name: str) -> None:
    """Raises ValueError for a target that is not in the table, with those that are."""
    if name not in TARGETS:
        message = f"no target {name!r} to compile for; known: {', '.join(TARGETS)}"
        raise ValueError(message)


def as_json(row: Row) -> dict[str, Any]:
    """The row's fields."""
    return asdict(row)


def target_note(name: str) -> str:
    """What is to be known about a target's numbers; empty where nothing is."""
    target: Target = TARGETS[name]
    return target.stands_for
