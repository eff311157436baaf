"""Bytes that no server should send: counted failures, never a traceback or an endless loop."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hwtune.adapters.load.exchange import Exchange
from hwtune.adapters.load.http import response_is_complete
from hwtune.adapters.load.stream import StreamFailure, read_answer

GOOD: dict[str, Any] = {
    "model": "m",
    "choices": [{"text": "a", "delta": {"content": "a"}, "finish_reason": "length"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {}},
}


def _answered(event: object) -> Exchange:
    """An exchange in which the server sent this one event."""
    body = b"data: " + json.dumps(event).encode() + b"\n\ndata: [DONE]\n\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    return Exchange(started_s=0.0, reads=[(1.0, head), (2.0, body)], ended_s=2.0)


@pytest.mark.parametrize(
    "place",
    [
        *(["model"], ["choices"], ["choices", 0]),
        *(["choices", 0, "delta"], ["choices", 0, "delta", "content"]),
        *(["choices", 0, "finish_reason"], ["usage", "prompt_tokens"]),
        *(["usage", "completion_tokens"], ["usage", "prompt_tokens_details"]),
        ["usage", "prompt_tokens_details", "cached_tokens"],
    ],
)
@pytest.mark.parametrize("value", [7.5, [1], [{"text": 7}], -3])
def test_a_field_of_another_type_is_a_failure_and_no_traceback(
    place: list[Any], value: object
) -> None:
    assert read_answer(_answered(GOOD), model="m", output_tokens=1).output_tokens == 1
    event: Any = json.loads(json.dumps(GOOD))
    inner = event
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(StreamFailure):
        answer = read_answer(_answered(event), model="m", output_tokens=1)
        pytest.fail(f"accepted: {answer}")


@pytest.mark.parametrize("size", [b"-5", b"+5", b"1_0", b"0x5", b""])
def test_a_chunk_size_that_is_none_ends_the_response(size: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    reads = [(1.0, head + size + b"\r\nhello\r\n")]
    assert response_is_complete(reads)
    with pytest.raises(StreamFailure, match="not a chunk size"):
        read_answer(Exchange(reads=reads), model="m", output_tokens=1)
