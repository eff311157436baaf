"""The two Triton kernels of page_decode: one segment of a sequence, and the merge of segments."""

from __future__ import annotations

import triton
import triton.language as tl

from hwtune_kernels.attend_jit import LOG2E, attend_tile


@triton.jit
def page_decode_kernel(
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
    partial_ptr,
    maxima_ptr,
    sums_ptr,
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
    NUM_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
    DRAFTS: tl.constexpr,
    SEGMENTS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    FP8: tl.constexpr,
    EXACT: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Grid ``(num_sequences, num_kv_heads, SEGMENTS)``: one segment of one sequence and KV head."""
    TILES_PER_PAGE: tl.constexpr = PAGE // TILE
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    segment = tl.program_id(2)

    seq_len = tl.load(seq_lens_ptr + sequence)
    first_token = tl.load(query_start_ptr + sequence)
    query_len = tl.load(query_start_ptr + sequence + 1) - first_token
    if query_len < 1:
        return  # padding of a captured batch

    num_tiles = tl.cdiv(seq_len, TILE)
    window_tile = 0
    if WINDOW > 0:
        window_tile = tl.maximum(seq_len - query_len + 1 - WINDOW, 0) // TILE
    tiles_per_segment = tl.cdiv(num_tiles - window_tile, SEGMENTS)
    tile_begin = window_tile + segment * tiles_per_segment
    if (tile_begin >= num_tiles) and (segment > 0):
        return  # the merge does not read it
    tile_end = tl.minimum(tile_begin + tiles_per_segment, num_tiles)
    # Tiles that every row sees whole need no mask; a window cuts into them from the left.
    full_end = tl.minimum(tile_end, (seq_len - query_len + 1) // TILE)

    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, HEAD_SIZE)
    row_token = rows // GROUP
    row_head = kv_head * GROUP + rows % GROUP
    row_used = row_token < query_len
    visible = seq_len - query_len + row_token + 1
    queries = tl.load(
        query_ptr
        + (first_token + row_token)[:, None] * query_stride_token
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
    if not EXACT and not SOFT_CAP:
        score_scale = scale * LOG2E
    maxima = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    sums = tl.full([ROWS], 1.0, dtype=tl.float32)
    if HAS_SINKS:
        if segment == 0:  # once per row, not once per segment
            maxima = tl.load(sinks_ptr + row_head, mask=row_used, other=0.0).to(tl.float32)
            maxima = maxima * LOG2E
    weighted = tl.zeros([ROWS, HEAD_SIZE], dtype=tl.float32)

    tokens = tl.arange(0, TILE)
    if EXACT:
        key_offsets = tokens[None, :] * key_stride_token + dims[:, None]
    else:
        key_offsets = tokens[:, None] * key_stride_token + dims[None, :]
    value_offsets = tokens[:, None] * value_stride_token + dims[None, :]
    key_head = key_ptr + kv_head * key_stride_head
    value_head = value_ptr + kv_head * value_stride_head
    table_row = block_table_ptr + sequence * table_stride

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
                seq_len,
                score_scale,
                cap,
                TILE,
                WINDOW > 0,
                WINDOW,
                SOFT_CAP,
                EXACT,
            )
    # What is left sees the end of the sequence: one tile, or as many as the drafts touch. Without
    # drafts it is no loop, because a loop costs registers up to spilling (static table).
    tile = tl.maximum(tile_begin, full_end)
    if not DRAFTS:
        if tile < tile_end:
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
                seq_len,
                score_scale,
                cap,
                TILE,
                True,
                WINDOW,
                SOFT_CAP,
                EXACT,
            )
    else:
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
                seq_len,
                score_scale,
                cap,
                TILE,
                True,
                WINDOW,
                SOFT_CAP,
                EXACT,
            )

    if FP8:
        weighted = weighted * tl.load(value_scale_ptr)
    if SEGMENTS == 1:
        result = weighted / tl.where(sums == 0.0, 1.0, sums)[:, None]
        tl.store(
            output_ptr
            + (first_token + row_token)[:, None] * output_stride_token
            + row_head[:, None] * output_stride_head
            + dims[None, :],
            result.to(output_ptr.dtype.element_ty),
            mask=row_used[:, None],
        )
    else:
        place = ((first_token + row_token) * NUM_HEADS + row_head) * SEGMENTS + segment
        place = place.to(tl.int64)
        tl.store(
            partial_ptr + place[:, None] * HEAD_SIZE + dims[None, :],
            weighted,
            mask=row_used[:, None],
        )
        tl.store(maxima_ptr + place, maxima, mask=row_used)
        tl.store(sums_ptr + place, sums, mask=row_used)


@triton.jit
def merge_segments_kernel(
    output_ptr,
    partial_ptr,
    maxima_ptr,
    sums_ptr,
    seq_lens_ptr,
    query_start_ptr,
    output_stride_token,
    output_stride_head,
    NUM_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    SEGMENTS: tl.constexpr,
    WINDOW: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Grid ``(num_sequences * HEAD_SIZE / BLOCK, num_heads, max_query_len)``: BLOCK dims of one row."""
    sequence = tl.program_id(0) // (HEAD_SIZE // BLOCK)
    dims = tl.program_id(0) % (HEAD_SIZE // BLOCK) * BLOCK + tl.arange(0, BLOCK)
    head = tl.program_id(1)
    first_token = tl.load(query_start_ptr + sequence)
    query_len = tl.load(query_start_ptr + sequence + 1) - first_token
    if tl.program_id(2) >= query_len:
        return
    token = first_token + tl.program_id(2)
    seq_len = tl.load(seq_lens_ptr + sequence)
    num_tiles = tl.cdiv(seq_len, TILE)
    if WINDOW > 0:
        num_tiles -= tl.maximum(seq_len - query_len + 1 - WINDOW, 0) // TILE
    tiles_per_segment = tl.maximum(tl.cdiv(num_tiles, SEGMENTS), 1)
    segments = tl.arange(0, SEGMENTS)
    # An empty sequence has one segment, which saw nothing (sinks aside).
    used = segments < tl.maximum(tl.cdiv(num_tiles, tiles_per_segment), 1)

    place = ((token * NUM_HEADS + head) * SEGMENTS).to(tl.int64) + segments
    maxima = tl.load(maxima_ptr + place, mask=used, other=float("-inf"))
    sums = tl.load(sums_ptr + place, mask=used, other=0.0)
    highest = tl.max(maxima)
    if EXACT:
        fade = tl.exp(maxima - highest)
    else:
        highest = tl.where(highest > float("-inf"), highest, 0.0)
        fade = tl.exp2(maxima - highest)
    total = tl.sum(sums * fade)
    partial = tl.load(
        partial_ptr + place[:, None] * HEAD_SIZE + dims[None, :], mask=used[:, None], other=0.0
    )
    result = tl.sum(partial * fade[:, None], axis=0)
    result = result / tl.where(total == 0.0, 1.0, total)  # nothing seen: zeros
    tl.store(
        output_ptr + token * output_stride_token + head * output_stride_head + dims,
        result.to(output_ptr.dtype.element_ty),
    )
