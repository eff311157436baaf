"""One tile of attention in Triton: what the decode and the prefill kernel have in common."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def attend_tile(
    queries,
    maxima,
    sums,
    weighted,
    key_tile,
    value_tile,
    key_offsets,
    value_offsets,
    first_position,
    visible,
    seq_len,
    scale,
    cap,
    TILE: tl.constexpr,
    MASKED: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    EXACT: tl.constexpr,
):
    """One tile of the online softmax. ``visible``: keys that each row may see, from the start."""
    # exact reads K as [dims, tokens], as vLLM's kernel does: BLAS in the interpreter sums a
    # transposed operand in another order. Otherwise [tokens, dims] needs fewer registers.
    if MASKED:
        positions = first_position + tl.arange(0, TILE)
        used = positions < seq_len
        key_used = used[None, :] if EXACT else used[:, None]
        keys = tl.load(key_tile + key_offsets, mask=key_used, other=0.0)
        values = tl.load(value_tile + value_offsets, mask=used[:, None], other=0.0)
    else:
        keys = tl.load(key_tile + key_offsets)
        values = tl.load(value_tile + value_offsets)
    keys = keys.to(queries.dtype)
    values = values.to(queries.dtype)
    if EXACT:
        scores = scale * tl.dot(queries, keys)
    else:
        scores = tl.dot(queries, tl.trans(keys))
    if SOFT_CAP:
        # cap · tanh(scale · x / cap), in base 2; a single exponential saturates and never overflows
        scores = cap * (1.0 - 2.0 / (tl.exp2(scores * (2.0 * scale / cap * LOG2E)) + 1.0))
        scores = scores * LOG2E
    if MASKED:
        seen = positions[None, :] < visible[:, None]
        if WINDOW > 0:
            seen = seen & (positions[None, :] >= visible[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
    if EXACT or SOFT_CAP:
        highest = tl.maximum(maxima, tl.max(scores, axis=1))
    else:
        highest = tl.maximum(maxima, tl.max(scores, axis=1) * scale)
    shift = highest
    if MASKED:
        # A row that has seen nothing yet keeps -inf as its maximum, but must not subtract it.
        shift = tl.where(highest > float("-inf"), highest, 0.0)
    if EXACT:
        weights = tl.exp(scores - shift[:, None])
        fade = tl.exp(maxima - shift)
    elif SOFT_CAP:
        weights = tl.exp2(scores - shift[:, None])
        fade = tl.exp2(maxima - shift)
    else:
        weights = tl.exp2(scores * scale - shift[:, None])
        fade = tl.exp2(maxima - shift)
    sums = sums * fade + tl.sum(weights, axis=1)
    weighted = weighted * fade[:, None]
    weighted += tl.dot(weights.to(values.dtype), values)
    return highest, sums, weighted
