"""The Triton kernel of tiled_prefill: one block of a sequence's new tokens over its pages."""

from __future__ import annotations

import triton
import triton.language as tl

from hwtune_kernels.attend_jit import LOG2E, attend_tile


@triton.jit
def tiled_prefill_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    block_table_ptr,
    seq_lens_ptr,
    query_start_ptr,
    sinks_ptr,
    key_scale_ptr,
    value_scale_ptr,
    output_ptr,
    scale,
    cap,
    query_stride_token,
    query_stride_head,
    output_stride_token,
    output_stride_head,
    key_stride_page,
    key_stride_token,
    key_stride_head,
    value_stride_page,
    value_stride_token,
    value_stride_head,
    table_stride,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    FP8: tl.constexpr,
    UPCAST: tl.constexpr,
    PEEL: tl.constexpr,
):
    """Grid ``(blocks of the longest query, num_kv_heads, num_sequences)``.

    A block holds ``ROWS // GROUP`` tokens with all query heads of one KV head, so that K and V are
    read once for all of them. The last blocks, which see the most keys, come first.
    """
    TILES_PER_PAGE: tl.constexpr = PAGE // TILE
    TOKENS: tl.constexpr = ROWS // GROUP
    kv_head = tl.program_id(1)
    sequence = tl.program_id(2)
    first_token = tl.load(query_start_ptr + sequence)
    query_len = tl.load(query_start_ptr + sequence + 1) - first_token
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * TOKENS
    if start >= query_len:
        return
    context = tl.load(seq_lens_ptr + sequence) - query_len
    stop = tl.minimum(start + TOKENS, query_len)

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, HEAD_SIZE)
    row_token = start + rows // GROUP
    row_head = kv_head * GROUP + rows % GROUP
    row_used = row_token < stop
    visible = context + tl.minimum(row_token, stop - 1) + 1
    queries = tl.load(
        query_ptr
        + (first_token + row_token)[:, None].to(tl.int64) * query_stride_token
        + row_head[:, None] * query_stride_head
        + dims[None, :],
        mask=row_used[:, None],
        other=0.0,
    )
    if UPCAST:
        queries = queries.to(tl.float32)

    if FP8:
        scale = scale * tl.load(key_scale_ptr)
    score_scale = scale
    if not SOFT_CAP:
        score_scale = scale * LOG2E
    if HAS_SINKS:
        maxima = tl.load(sinks_ptr + row_head, mask=row_used, other=0.0).to(tl.float32) * LOG2E
    else:
        maxima = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    sums = tl.full([ROWS], 1.0, dtype=tl.float32)
    weighted = tl.zeros([ROWS, HEAD_SIZE], dtype=tl.float32)

    tokens = tl.arange(0, TILE)
    key_offsets = tokens[:, None] * key_stride_token + dims[None, :]
    value_offsets = tokens[:, None] * value_stride_token + dims[None, :]
    key_head = key_ptr + kv_head * key_stride_head
    value_head = value_ptr + kv_head * value_stride_head
    table_row = block_table_ptr + sequence * table_stride

    tile_begin = 0
    if WINDOW > 0:
        tile_begin = tl.maximum(context + start + 1 - WINDOW, 0) // TILE
    tile_end = tl.cdiv(context + stop, TILE)
    # Tiles that the first token, and so every row, sees whole need no mask.
    MASK_ALL: tl.constexpr = WINDOW > 0 or not PEEL
    full_end = tile_end if MASK_ALL else (context + start + 1) // TILE
    for page in range(tile_begin // TILES_PER_PAGE, tl.cdiv(full_end, TILES_PER_PAGE)):
        block = tl.load(table_row + page).to(tl.int64)
        key_page = key_head + block * key_stride_page
        value_page = value_head + block * value_stride_page
        begin = tl.maximum(tile_begin - page * TILES_PER_PAGE, 0)
        end = tl.minimum(full_end - page * TILES_PER_PAGE, TILES_PER_PAGE)
        for tile in range(begin, end):
            maxima, sums, weighted = attend_tile(
                queries,
                maxima,
                sums,
                weighted,
                key_page + tile * TILE * key_stride_token,
                value_page + tile * TILE * value_stride_token,
                key_offsets,
                value_offsets,
                (page * TILES_PER_PAGE + tile) * TILE,
                visible,
                context + stop,
                score_scale,
                cap,
                TILE,
                MASK_ALL,
                WINDOW,
                SOFT_CAP,
                False,
            )
    # The diagonal: keys that some rows of the block see and others do not.
    if not MASK_ALL:
        for tile in tl.range(tl.maximum(tile_begin, full_end), tile_end, num_stages=1):
            page = tile // TILES_PER_PAGE
            block = tl.load(table_row + page).to(tl.int64)
            first = (tile - page * TILES_PER_PAGE) * TILE
            maxima, sums, weighted = attend_tile(
                queries,
                maxima,
                sums,
                weighted,
                key_head + block * key_stride_page + first * key_stride_token,
                value_head + block * value_stride_page + first * value_stride_token,
                key_offsets,
                value_offsets,
                tile * TILE,
                visible,
                context + stop,
                score_scale,
                cap,
                TILE,
                True,
                WINDOW,
                SOFT_CAP,
                False,
            )

    if FP8:
        weighted = weighted * tl.load(value_scale_ptr)
    result = weighted / tl.where(sums == 0.0, 1.0, sums)[:, None]
    tl.store(
        output_ptr
        + (first_token + row_token)[:, None].to(tl.int64) * output_stride_token
        + row_head[:, None] * output_stride_head
        + dims[None, :],
        result.to(output_ptr.dtype.element_ty),
        mask=row_used[:, None],
    )
