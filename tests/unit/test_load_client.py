"""The client against a mock server: every fault is a counted failure, none looks fast."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hwtune.adapters.load.client import Request, run_load
from hwtune.adapters.load.exchange import parse_endpoint
from hwtune.adapters.load.mock_frames import Behaviour
from hwtune.adapters.load.mock_thread import running_mock
from hwtune.domain.bench import FailureReason, RequestRecord
from hwtune.domain.errors import InputError

QUICK = Behaviour(ttft_s=0.002, tpot_s=0.0002)


def _requests(count: int, output_tokens: int = 16) -> list[Request]:
    return [
        Request(
            arm="baseline",
            phase="measured",
            tier="t",
            pair=0,
            attempt=0,
            prompt=index,
            prompt_id=str(index),
            token_ids=(5, 6, 7),
            model="mock",
            output_tokens=output_tokens,
        )
        for index in range(count)
    ]


def _run(
    url: str, count: int = 1, concurrency: int = 1, timeout_s: float = 5.0, tokens: int = 16
) -> list[RequestRecord]:
    records: list[RequestRecord] = []
    run_load(
        parse_endpoint(url),
        _requests(count, tokens),
        concurrency=concurrency,
        timeout_s=timeout_s,
        on_record=records.append,
    )
    return records


@pytest.mark.parametrize(
    "behaviour",
    [
        QUICK,
        replace(QUICK, split_writes=True),
        replace(QUICK, tokens_per_chunk=5),
        replace(QUICK, role_chunk=True),
        replace(QUICK, continuous_usage=False),
    ],
)
def test_a_good_stream_is_read_whole(behaviour: Behaviour) -> None:
    with running_mock(behaviour) as (url, _):
        records = _run(url, count=3, concurrency=2)
    assert sorted(record.prompt for record in records) == [0, 1, 2]
    for record in records:
        assert record.failure is None, record.detail
        assert (record.prompt_tokens, record.output_tokens) == (3, 16)
        assert record.text.startswith(" w0 w1 w4") and record.finish_reason == "length"
        assert record.ttft_s is not None and record.e2el_s is not None
        assert 0 < record.ttft_s <= record.e2el_s
        chunks = -(-16 // behaviour.tokens_per_chunk)
        assert len(record.chunk_times_s) == chunks
        assert record.started_unix_s < record.ended_unix_s


@pytest.mark.parametrize("continuous_usage", [True, False])
def test_an_early_role_chunk_is_not_the_first_token(continuous_usage: bool) -> None:
    behaviour = Behaviour(
        ttft_s=0.1, tpot_s=0.001, role_chunk=True, continuous_usage=continuous_usage
    )
    with running_mock(behaviour) as (url, _):
        (record,) = _run(url)
    # The mock's timer never fires early; a role chunk would have come at once.
    assert record.ttft_s is not None and record.ttft_s >= 0.099


def test_a_token_without_text_counts_when_the_server_counts_as_it_streams() -> None:
    with running_mock(replace(QUICK, text="empty")) as (url, _):
        (record,) = _run(url)
    assert record.failure is None
    assert len(record.chunk_times_s) == 16 and record.text == ""


@pytest.mark.parametrize(
    ("fault", "reason", "detail"),
    [
        ("http 500", "http status", "500 the mock was told to fail"),
        ("error body", "error body", "the mock was told to fail"),
        ("error event", "error event", "the mock was told to fail"),
        ("drop", "truncated stream", "closed"),
        ("silent truncation", "truncated stream", "finish_reason"),
        ("no usage", "missing usage", "usage"),
        ("zero tokens", "zero tokens", "0 output tokens"),
        ("wrong model", "wrong model", "answered as another"),
        ("hang", "timeout", "0.2 s"),
        ("not http", "malformed response", "SSH"),
    ],
)
def test_every_fault_is_a_failure_with_its_reason_and_no_time(
    fault: str, reason: FailureReason, detail: str
) -> None:
    behaviour = replace(QUICK, fault=fault, fault_every=2)  # type: ignore[arg-type]
    with running_mock(behaviour) as (url, _):
        good, bad, after = _run(url, count=3, timeout_s=0.2 if fault == "hang" else 5.0)
    assert good.failure is None and after.failure is None
    assert bad.failure == reason
    assert detail in bad.detail
    assert bad.ttft_s is None and bad.e2el_s is None and bad.tpot_s is None


def test_a_server_that_is_not_there_is_a_connect_error() -> None:
    with running_mock(Behaviour()) as (url, _):
        pass
    records = _run(url, count=3)
    assert [record.failure for record in records] == ["connect error"]


def test_a_server_that_dies_in_mid_answer_ends_the_load() -> None:
    with running_mock(replace(QUICK, fault="die", fault_every=3)) as (url, _):
        records = _run(url, count=6)
    assert [record.failure for record in records] == [None, None, "connect error"]
    assert "went away" in records[-1].detail


def test_concurrency_is_reached_and_not_exceeded() -> None:
    with running_mock(Behaviour(ttft_s=0.02, tpot_s=0.001)) as (url, server):
        records = _run(url, count=24, concurrency=8)
    assert len(records) == 24 and not any(record.failure for record in records)
    assert server.most_in_flight == 8


def test_the_request_asks_for_an_exact_length_and_for_usage() -> None:
    with running_mock(QUICK) as (url, server):
        _run(url)
    (body,) = server.bodies
    assert body["prompt"] == [5, 6, 7]
    assert body["max_tokens"] == body["min_tokens"] == 16 and body["ignore_eos"] is True
    assert body["temperature"] == 0.0 and body["stream_options"]["include_usage"] is True


@pytest.mark.parametrize(
    "url", ["https://h:1", "ftp://h", "http://", "http://h:99999", "http://h:x"]
)
def test_a_bad_url_is_one_line(url: str) -> None:
    with pytest.raises(InputError, match="http"):
        parse_endpoint(url)


def test_a_url_with_v1_means_the_server() -> None:
    assert parse_endpoint("http://h:1/v1/").path == ""
    assert parse_endpoint("h:8000").port == 8000
