"""Captured sizes and padding. The lists are what vLLM 0.32 computes for these settings."""

from __future__ import annotations

import pytest

from hwtune.domain.scheduler.classify import BatchRow
from hwtune.domain.scheduler.graphs import GraphMode, GraphSettings, capture_sizes, graph_use


def test_the_default_list() -> None:
    sizes = capture_sizes(max_num_seqs=256, max_num_batched_tokens=8192)
    assert sizes[:5] == (1, 2, 4, 8, 16)
    assert tuple(s for s in sizes if s in (248, 256, 264, 272, 512)) == (248, 256, 272, 512)
    assert len(sizes) == 51


def test_an_odd_budget_and_an_odd_batch_get_graphs_of_their_own() -> None:
    assert capture_sizes(max_num_seqs=256, max_num_batched_tokens=100)[-2:] == (96, 100)
    assert 3 in capture_sizes(max_num_seqs=3, max_num_batched_tokens=8192)


def test_draft_tokens_round_every_size_to_whole_requests() -> None:
    sizes = capture_sizes(max_num_seqs=4, max_num_batched_tokens=8192, num_speculative_tokens=2)
    assert sizes == (3, 6, 9, 12, 18, 24)


def test_an_npu_captures_half_as_far() -> None:
    assert capture_sizes(max_num_seqs=16, max_num_batched_tokens=2048, npu=True)[-1] == 16
    assert capture_sizes(max_num_seqs=16, max_num_batched_tokens=2048)[-1] == 32


@pytest.mark.parametrize(
    ("mode", "decode", "mixed"),
    [
        ("FULL_AND_PIECEWISE", ("full", 4), ("piecewise", 8)),
        ("FULL_DECODE_ONLY", ("full", 4), ("eager", 6)),
        ("PIECEWISE", ("piecewise", 4), ("piecewise", 8)),
        ("FULL", ("full", 4), ("full", 8)),
        ("NONE", ("eager", 3), ("eager", 6)),
    ],
)
def test_what_a_step_replays(
    mode: GraphMode, decode: tuple[str, int], mixed: tuple[str, int]
) -> None:
    settings = GraphSettings(mode=mode, sizes=(1, 2, 4, 8), max_num_seqs=8)
    decodes = [BatchRow(1, 9, 0, 3)] * 3
    use = graph_use(decodes, settings)
    assert (use.kind, use.padded_tokens) == decode
    use = graph_use([BatchRow(1, 9, 0, 3), BatchRow(5, 0, 0, 5)], settings)
    assert (use.kind, use.padded_tokens) == mixed


def test_a_step_beyond_the_largest_size_is_eager() -> None:
    settings = GraphSettings(mode="FULL_AND_PIECEWISE", sizes=(1, 2, 4, 8))
    assert graph_use([BatchRow(9, 0, 0, 9)], settings).kind == "eager"
