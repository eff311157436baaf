"""The client against a mock server: every fault is a counted failure, none looks fast."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hwtune.adapters.load.client import run_load
from hwtune.adapters.load.exchange import parse_endpoint
from hwtune.adapters.load.mock_frames import Behaviour
from hwtune.adapters.load.mock_thread import running_mock
from hwtune.adapters.load.requests import Request
from hwtune.domain.bench import FailureReason, RequestRecord
from hwtune.domain.errors import ExternalFailureError, InputError

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


def test_a_name_that_no_host_can_have_is_a_connect_error() -> None:
    (record,) = _run("http://a..b:80")
    assert record.failure == "connect error" and "idna" in record.detail


@pytest.mark.parametrize("count", [1, 4])
def test_a_record_that_cannot_be_kept_ends_the_load(count: int) -> None:
    """Also the last one, which is kept while nothing else is left to do."""

    def refuse(record: RequestRecord) -> None:
        raise ExternalFailureError(f"no room for {record.prompt}")

    with running_mock(QUICK) as (url, _), pytest.raises(ExternalFailureError, match="no room"):
        run_load(
            parse_endpoint(url),
            _requests(count),
            concurrency=1,
            timeout_s=5.0,
            on_record=refuse,
        )


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


@pytest.mark.parametrize("url", ["wss://h:1", "ftp://h", "http://", "http://h:99999", "http://h:x"])
def test_a_bad_url_is_one_line(url: str) -> None:
    with pytest.raises(InputError, match="http"):
        parse_endpoint(url)


def _certificate(folder: Path) -> ssl.SSLContext:
    """A server's context with a fresh certificate that nobody vouches for."""
    key, certificate = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command, *subject, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
@pytest.mark.parametrize(
    ("trusted", "verify", "failure"),
    [(True, True, None), (False, False, None), (False, True, "connect error")],
)
def test_tls_is_spoken_and_a_certificate_is_checked_unless_told_otherwise(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trusted: bool,
    verify: bool,
    failure: str | None,
) -> None:
    with running_mock(QUICK, tls=_certificate(tmp_path)) as (url, _):
        if trusted:
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        records: list[RequestRecord] = []
        run_load(
            parse_endpoint(url, verify_tls=verify),
            _requests(2),
            concurrency=1,
            timeout_s=5.0,
            on_record=records.append,
        )
    assert url.startswith("https://") and records[0].failure == failure
    assert failure is None or "certificate" in records[0].detail


@pytest.mark.parametrize(("key", "failure"), [("right", None), ("wrong", "http status")])
def test_the_api_key_is_sent_as_a_bearer_token(key: str, failure: str | None) -> None:
    with running_mock(replace(QUICK, api_key="right")) as (url, _):
        endpoint = parse_endpoint(url, api_key=key)
        records: list[RequestRecord] = []
        run_load(endpoint, _requests(1), concurrency=1, timeout_s=5.0, on_record=records.append)
    assert records[0].failure == failure
    assert key not in repr(endpoint) and key not in records[0].detail


def test_several_endpoints_are_asked_in_turn() -> None:
    with running_mock(QUICK) as (url_a, first), running_mock(QUICK) as (url_b, second):
        records: list[RequestRecord] = []
        run_load(
            [parse_endpoint(url_a), parse_endpoint(url_b)],
            _requests(10),
            concurrency=3,
            timeout_s=5.0,
            on_record=records.append,
        )
    assert (first.requests, second.requests) == (5, 5)
    assert {(record.prompt, record.server) for record in records} == {(k, k % 2) for k in range(10)}


def test_a_chat_is_read_like_a_completion_and_its_role_is_no_token() -> None:
    request = replace(_requests(1)[0], token_ids=(), chat_text="five words of a question")
    with running_mock(replace(QUICK, ttft_s=0.1)) as (url, server):
        records: list[RequestRecord] = []
        run_load(
            parse_endpoint(url), [request], concurrency=1, timeout_s=5.0, on_record=records.append
        )
    (record,) = records
    assert record.failure is None and record.text.startswith(" w0 w1 w4")
    assert record.prompt_tokens == 10 and record.output_tokens == 16
    assert record.ttft_s is not None and record.ttft_s >= 0.099
    (body,) = server.bodies
    assert body["messages"] == [{"role": "user", "content": "five words of a question"}]
    assert body["max_completion_tokens"] == body["min_tokens"] == 16 and "prompt" not in body


@pytest.mark.parametrize(("continuous_usage", "told"), [(True, (5, 5, 5, 1)), (False, ())])
def test_the_tokens_of_each_chunk_are_kept_where_the_server_tells(
    continuous_usage: bool, told: tuple[int, ...]
) -> None:
    behaviour = replace(QUICK, tokens_per_chunk=5, continuous_usage=continuous_usage)
    with running_mock(behaviour) as (url, _):
        (record,) = _run(url)
    assert record.chunk_tokens == told and len(record.chunk_times_s) == 4


def _schedule(url: str, due_s: list[float]) -> list[RequestRecord]:
    records: list[RequestRecord] = []
    requests = [replace(r, due_s=due) for r, due in zip(_requests(len(due_s)), due_s, strict=True)]
    run_load(
        parse_endpoint(url), requests, concurrency=None, timeout_s=5.0, on_record=records.append
    )
    return sorted(records, key=lambda record: record.prompt)


def test_an_open_loop_sends_when_a_request_is_due_however_slow_the_server_is() -> None:
    with running_mock(Behaviour(ttft_s=0.4, tpot_s=0.001)) as (url, server):
        records = _schedule(url, [0.0, 0.05, 0.1, 0.15])
    assert server.most_in_flight == 4
    starts = [record.started_unix_s - records[0].started_unix_s for record in records]
    # Never early; how late is the machine's matter, and is on record.
    for record, start, due in zip(records, starts, [0.0, 0.05, 0.1, 0.15], strict=True):
        assert start + records[0].late_s == pytest.approx(due + record.late_s, abs=2e-4)
        assert record.late_s >= 0.0 and record.failure is None


def test_a_request_that_had_to_wait_for_the_client_says_by_how_much() -> None:
    with running_mock(QUICK) as (url, _):
        records = _schedule(url, [0.0, 0.0, -0.2])
    assert records[2].late_s >= 0.2


def test_a_url_with_v1_means_the_server() -> None:
    assert parse_endpoint("http://h:1/v1/").path == ""
    assert parse_endpoint("h:8000").port == 8000
