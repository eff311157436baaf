"""Classes of a step. Expected values follow vllm-ascend's decision tables, row by row."""

from __future__ import annotations

import pytest

from hwtune.domain.scheduler.classify import (
    BatchRow,
    RunnerOptions,
    ascend_classes,
    gdn_groups,
    hygon_path,
    reordered,
    state_310p,
    state_v1,
    state_v2,
)

PLAIN = RunnerOptions()
MTP = RunnerOptions(num_speculative_tokens=3, speculative_method="mtp")
NGRAM = RunnerOptions(num_speculative_tokens=3, speculative_method="ngram")

DECODE = BatchRow(1, 20, 0, 12)
CHUNK = BatchRow(5, 6, 0, 12)
TAIL = BatchRow(1, 11, 0, 12)
NEW = BatchRow(5, 0, 0, 12)
NEW_SINGLE = BatchRow(1, 0, 0, 1)
DRAFTED = BatchRow(4, 20, 3, 12)


@pytest.mark.parametrize(
    ("rows", "options", "state"),
    [
        ([NEW], PLAIN, "PrefillNoCache"),
        ([NEW_SINGLE], MTP, "PrefillNoCache"),
        ([DECODE, DECODE], PLAIN, "DecodeOnly"),
        ([DECODE, DECODE], NGRAM, "DecodeOnly"),
        ([DECODE, DECODE], MTP, "SpecDecoding"),
        ([DECODE, TAIL], PLAIN, "DecodeOnly"),
        ([DECODE, NEW_SINGLE], PLAIN, "DecodeOnly"),
        ([DECODE, DRAFTED], NGRAM, "SpecDecoding"),
        ([DECODE, NEW], PLAIN, "ChunkedPrefill"),
        ([CHUNK], PLAIN, "ChunkedPrefill"),
        ([CHUNK], RunnerOptions(chunked_prefill=False), "PrefillCacheHit"),
    ],
)
def test_runner_v1(rows: list[BatchRow], options: RunnerOptions, state: str) -> None:
    assert state_v1(rows, options) == state


def test_v1_stores_another_state_than_it_returns_for_other_methods_than_mtp() -> None:
    classes = ascend_classes([DRAFTED, DECODE], NGRAM)
    assert (classes.v1, classes.v1_returned) == ("ChunkedPrefill", "SpecDecoding")
    assert not classes.with_prefill
    assert classes.v2 == "ChunkedPrefill"
    assert ascend_classes([DRAFTED], MTP).v1 == "SpecDecoding"


def test_v2_asks_for_pooling_first() -> None:
    assert state_v2([DECODE], RunnerOptions(pooling="decoder")) == "PrefillCacheHit"
    assert state_v2([DECODE], RunnerOptions(pooling="encoder only")) == "PrefillNoCache"


def test_310p_calls_full_drafts_spec_decoding_and_a_new_prompt_prefill() -> None:
    full = BatchRow(4, 20, 0, 12)
    assert state_310p([full, full], NGRAM) == "SpecDecoding"
    assert state_310p([BatchRow(4, 0, 0, 4)], NGRAM) == "PrefillNoCache"
    assert state_310p([full, BatchRow(3, 20, 0, 40)], NGRAM) == "ChunkedPrefill"


def test_a_last_chunk_of_one_token_is_a_decode_for_attention_and_a_prefill_for_gdn() -> None:
    classes = ascend_classes([DECODE, TAIL], PLAIN)
    assert classes.v1 == "DecodeOnly"
    assert classes.split == (2, 0, 2, 0)
    assert classes.gdn_split == (1, 1, 1, 1)


def test_a_new_one_token_prompt_behind_a_long_one_is_a_prefill() -> None:
    assert ascend_classes([NEW_SINGLE, NEW], PLAIN).split == (1, 1, 1, 5)
    assert ascend_classes([NEW, NEW_SINGLE], PLAIN).split == (0, 2, 0, 6)


def test_drafted_rows_are_decodes_for_attention() -> None:
    assert ascend_classes([DRAFTED, NEW], MTP).split == (1, 1, 4, 5)


def test_reordering_swaps_only_what_stands_wrong() -> None:
    first, second = BatchRow(7, 0, 0, 9), BatchRow(8, 0, 0, 9)
    assert list(reordered([first, second, DECODE], 1)) == [DECODE, second, first]
    assert list(reordered([CHUNK, DECODE, TAIL], 1)) == [DECODE, TAIL, CHUNK]


def test_plain_decodes_beside_drafts_run_as_gdn_prefills() -> None:
    assert gdn_groups([DRAFTED, DECODE, NEW]) == (1, 0, 2)
    assert gdn_groups([DECODE, TAIL, NEW]) == (0, 1, 2)


@pytest.mark.parametrize(
    ("scheduled", "path"),
    [
        ([1], "page_decode"),
        ([1, 1, 1], "page_decode"),
        ([2], "vendor_prefill"),
        ([4096], "vendor_prefill"),
        ([4097], "generic"),
        ([4095, 1], "generic"),
    ],
)
def test_gfx936_paths(scheduled: list[int], path: str) -> None:
    assert hygon_path(scheduled) == path
