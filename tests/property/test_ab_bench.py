"""Laws of the measurement that hold for every input."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hwtune.adapters.load.exchange import Exchange
from hwtune.adapters.load.http import response_is_complete
from hwtune.adapters.load.mock_frames import Behaviour, Fault, response_frames
from hwtune.adapters.load.stream import StreamFailure, read_answer
from hwtune.domain.bench import ARMS
from hwtune.domain.outputs import is_degenerate
from hwtune.domain.prompts import prompt_lengths
from hwtune.domain.stats import interval_of_mean, judge, median
from hwtune.domain.workload import Design, Tier, prompts_in_pair, schedule
from hwtune.io.records import read_requests

BEHAVIOUR = Behaviour(ttft_s=0, tpot_s=0)
RESPONSE = b"".join(response_frames(BEHAVIOUR, "none", 7, 12))


def _reads(data: bytes, cuts: list[int]) -> list[tuple[float, bytes]]:
    edges = [0, *sorted(cut % len(data) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in pairwise(edges) if a < b]
    return [(float(index), piece) for index, piece in enumerate(pieces)]


@given(st.lists(st.integers(min_value=1), max_size=40))
def test_however_the_network_cuts_a_stream_it_reads_the_same(cuts: list[int]) -> None:
    reads = _reads(RESPONSE, cuts)
    answer = read_answer(Exchange(reads=reads), model="mock", output_tokens=12)
    assert len(answer.token_times_s) == 12 and answer.output_tokens == 12
    assert answer.token_times_s == sorted(answer.token_times_s)
    assert response_is_complete(reads)
    assert not response_is_complete(reads[:-1])


@given(st.integers(min_value=0, max_value=len(RESPONSE) - 10))
def test_a_stream_that_ends_anywhere_too_early_is_a_failure(length: int) -> None:
    exchange = Exchange(reads=[(0.0, RESPONSE[:length])], ending="closed early")
    with pytest.raises(StreamFailure):
        read_answer(exchange, model="mock", output_tokens=12)


@given(st.binary(max_size=300))
def test_rubbish_is_a_failure_and_never_a_crash(data: bytes) -> None:
    for head in (b"", RESPONSE[: RESPONSE.find(b"\r\n\r\n") + 4]):
        with pytest.raises(StreamFailure):
            read_answer(Exchange(reads=[(0.0, head + data)]), model="mock", output_tokens=None)


FAULTS: list[Fault] = ["error event", "silent truncation", "no usage", "zero tokens", "wrong model"]


@given(st.sampled_from(FAULTS), st.integers(2, 40), st.integers(1, 5))
def test_no_fault_passes_as_an_answer(fault: Fault, tokens: int, per_chunk: int) -> None:
    behaviour = replace(BEHAVIOUR, tokens_per_chunk=per_chunk)
    data = b"".join(response_frames(behaviour, fault, 7, tokens))
    with pytest.raises(StreamFailure):
        read_answer(Exchange(reads=[(0.0, data)]), model="mock", output_tokens=tokens)


VALUES = st.lists(st.floats(-1, 1), min_size=6, max_size=30)


@given(VALUES, st.floats(-1, 1))
@settings(deadline=None, max_examples=25)
def test_the_interval_holds_the_mean_and_moves_with_the_values(
    values: list[float], shift: float
) -> None:
    low, high = interval_of_mean(values, 0.95)
    middle = math.fsum(values) / len(values)
    assert low <= middle + 1e-9 and middle - 1e-9 <= high
    moved = interval_of_mean([value + shift for value in values], 0.95)
    assert moved == pytest.approx((low + shift, high + shift), abs=1e-6)


@given(VALUES)
@settings(deadline=None, max_examples=25)
def test_swapping_the_arms_swaps_faster_and_slower(values: list[float]) -> None:
    swapped = [-value for value in values]
    verdicts = []
    for logs in (values, swapped):
        low, high = interval_of_mean(logs, 0.95)
        # The bootstrap draws at random: near a bound it may fall on either side.
        if min(abs(bound) for bound in (low, high)) < 0.02 or max(map(abs, (low, high))) < 0.05:
            return
        verdicts.append(judge(logs, (low, high), better="lower", margin=0.02)[0].kind)
    opposite = {"faster": "slower", "slower": "faster"}
    assert verdicts[1] == opposite.get(verdicts[0], verdicts[0])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_the_median_has_as_many_values_below_as_above(values: list[float]) -> None:
    middle = median(values)
    assert middle is not None
    below = sum(value < middle for value in values)
    above = sum(value > middle for value in values)
    assert below <= len(values) / 2 and above <= len(values) / 2


DESIGNS = st.builds(
    lambda pairs, extra, tiers, output, seed: Design(
        model="m",
        profile=None,
        flags=(),
        mode="given urls",
        vocab_size=1000,
        tiers=tuple(
            Tier(name=str(n), least_tokens=100 * n, most_tokens=200 * n)
            for n in range(1, tiers + 1)
        ),
        pairs=pairs,
        prompts_per_tier=pairs + extra,
        output_tokens=output,
        concurrency=1,
        seed=seed,
    ),
    st.integers(1, 15),
    st.integers(0, 30),
    st.integers(1, 4),
    st.integers(2, 100),
    st.integers(0, 1000),
)


@given(DESIGNS)
def test_every_design_is_balanced(design: Design) -> None:
    blocks = schedule(design)
    places = {(block.tier.name, block.pair, block.arm) for block in blocks}
    assert len(blocks) == len(places) == len(design.tiers) * design.pairs * len(ARMS)
    assert sum(prompts_in_pair(design, pair) for pair in range(design.pairs)) == (
        design.prompts_per_tier
    )
    for first, second in zip(blocks[::2], blocks[1::2], strict=True):
        assert (first.tier, first.pair) == (second.tier, second.pair)
        assert first.arm != second.arm


@given(DESIGNS)
def test_every_prompt_and_its_answer_stay_within_the_tier(design: Design) -> None:
    for tier in design.tiers:
        for pair in range(design.pairs):
            for length in prompt_lengths(design, tier, pair):
                assert 0 < length <= tier.most_tokens - design.output_tokens


@given(st.text(min_size=1, max_size=8).filter(str.strip), st.integers(20, 60))
def test_any_repeated_unit_is_degenerate(unit: str, times: int) -> None:
    assert is_degenerate(unit * times)


LINE = json.dumps(
    {
        "arm": "baseline",
        "phase": "measured",
        "tier": "t",
        "pair": 0,
        "prompt": 1,
        "prompt_id": "p",
        "started_unix_s": 1.0,
        "ended_unix_s": 2.0,
        "ttft_s": 0.5,
        "e2el_s": 0.9,
        "output_tokens": 2,
        "chunk_times_s": [0.5, 0.9],
    }
)


@given(st.integers(0, 3 * (len(LINE) + 1)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_journal_cut_anywhere_gives_all_whole_records(tmp_path: Path, length: int) -> None:
    (tmp_path / "requests.jsonl").write_text(f"{LINE}\n" * 3)
    data = (tmp_path / "requests.jsonl").read_bytes()[:length]
    (tmp_path / "requests.jsonl").write_bytes(data)
    whole = sum(line == LINE for line in data.decode().splitlines())
    assert len(read_requests(tmp_path)) == whole
