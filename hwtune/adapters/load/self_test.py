"""Can this machine measure what was asked? The client against the mock, in its own process."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hwtune.adapters.load.client import run_load
from hwtune.adapters.load.exchange import parse_endpoint
from hwtune.adapters.load.mock_frames import Behaviour, Fault
from hwtune.adapters.load.mock_thread import running_mock
from hwtune.adapters.load.requests import Request
from hwtune.domain.bench import FailureReason, RequestRecord
from hwtune.domain.client_check import ClientCheck, Truth, check_client
from hwtune.domain.errors import ExternalFailureError

TRUTH = Truth(ttft_s=0.2, tpot_s=0.02, output_tokens=64)
STREAMS = (1, 32, 256, 1000)

FAULTS: tuple[tuple[Fault, FailureReason], ...] = (
    ("http 500", "http status"),
    ("error body", "error body"),
    ("error event", "error event"),
    ("drop", "truncated stream"),
    ("silent truncation", "truncated stream"),
    ("no usage", "missing usage"),
    ("zero tokens", "zero tokens"),
    ("wrong model", "wrong model"),
    ("hang", "timeout"),
    ("not http", "malformed response"),
)
"""What the mock plays, and what the client must call it."""


def check_speed(streams: Sequence[int], mock_prefix: Sequence[str] = ()) -> Iterator[ClientCheck]:
    """One check per concurrency, each on a fresh mock in a process of its own.

    Raises:
        ExternalFailureError: the mock does not start.
    """
    for count in streams:
        with mock_process(TRUTH, mock_prefix) as url:
            yield _check(url, count)


def _check(url: str, streams: int) -> ClientCheck:
    records: list[RequestRecord] = []
    requests = mock_requests(max(4, 2 * streams), TRUTH.output_tokens)
    before = _cpu_s()
    run_load(
        parse_endpoint(url),
        requests,
        concurrency=streams,
        timeout_s=60.0,
        on_record=records.append,
    )
    cpu_s = _cpu_s() - before
    try:
        return check_client(streams, records, TRUTH, cpu_s=cpu_s)
    except ValueError as error:
        message = f"self-test at {streams} streams: {error}"
        raise ExternalFailureError(message) from None


def check_faults() -> list[str]:
    """Faults that the client does not name as it must; empty when all is well."""
    wrong = []
    for fault, reason in FAULTS:
        behaviour = Behaviour(ttft_s=0.002, tpot_s=0.0005, fault=fault)
        records: list[RequestRecord] = []
        with running_mock(behaviour) as (url, _):
            run_load(
                parse_endpoint(url),
                mock_requests(1, 16),
                concurrency=1,
                timeout_s=0.3,
                on_record=records.append,
            )
        if [record.failure for record in records] != [reason]:
            wrong.append(f"{fault}: {records[0].failure or 'counted as a success'}")
    return wrong


def mock_requests(count: int, output_tokens: int) -> list[Request]:
    """Requests with a 16-token prompt for the mock."""
    return [
        Request(
            arm="baseline",
            phase="measured",
            tier="self-test",
            pair=0,
            attempt=0,
            prompt=index,
            prompt_id=str(index),
            token_ids=tuple(range(16)),
            model="mock",
            output_tokens=output_tokens,
        )
        for index in range(count)
    ]


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@contextmanager
def mock_process(truth: Truth, prefix: Sequence[str] = ()) -> Iterator[str]:
    """URL of a mock in a process of its own, ended with the context.

    Args:
        truth: its timing.
        prefix: words before the command, such as ``taskset -c 0``.
    """
    command = [sys.executable, "-m", "hwtune.adapters.load.mock_server"]
    timing = ["--ttft-s", str(truth.ttft_s), "--tpot-s", str(truth.tpot_s), "--text", "clock"]
    child = subprocess.Popen([*prefix, *command, *timing], stdout=subprocess.PIPE, text=True)
    try:
        line = child.stdout.readline() if child.stdout else ""
        if not line.strip().isdigit():
            message = "the mock server of the self-test did not start"
            raise ExternalFailureError(message)
        yield f"http://127.0.0.1:{line.strip()}"
    finally:
        child.terminate()
        child.wait(timeout=10)
        if child.stdout:
            child.stdout.close()
