"""From the bytes of a finished exchange to what the server said, or why it is a failure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from hwtune.adapters.load.exchange import Exchange
from hwtune.adapters.load.http import Head, MalformedResponseError, body_pieces, parse_head
from hwtune.domain.bench import FailureReason
from hwtune.domain.json_text import parse_json

_Kind = TypeVar("_Kind")


class StreamFailure(Exception):
    """A request that does not count, with the reason."""

    def __init__(self, reason: FailureReason, detail: str) -> None:
        super().__init__(detail)
        self.reason: FailureReason = reason
        self.detail = detail


def _fail(reason: FailureReason, detail: str) -> NoReturn:
    raise StreamFailure(reason, detail) from None


@dataclass(slots=True, kw_only=True)
class Answer:
    """What a good stream said."""

    token_times_s: list[float] = field(default_factory=list)
    """Clock time of each chunk that carries a token."""
    token_counts: list[int | None] = field(default_factory=list)
    """Output tokens so far at each of these, where the server counts as it streams."""
    texts: list[str] = field(default_factory=list)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    model: str | None = None
    cached_tokens: int | None = None
    done: bool = False


def read_answer(exchange: Exchange, *, model: str, output_tokens: int | None) -> Answer:
    """Judges a finished exchange.

    Args:
        exchange: the raw bytes and times.
        model: name asked for; the server must answer under it.
        output_tokens: exact number the answer must have, or None for any above 0.

    Raises:
        StreamFailure: with one of the counted reasons.
    """
    if exchange.ending == "connect error":
        _fail("connect error", exchange.detail)
    if exchange.ending == "timeout":
        _fail("timeout", exchange.detail)
    try:
        head = parse_head(b"".join(piece for _, piece in exchange.reads))
        if head is None:
            _fail("connect error", exchange.detail or "no answer")
        answer = _read_body(exchange, head)
    except MalformedResponseError as error:
        _fail("malformed response", str(error))
    _check_complete(answer, exchange)
    _check_content(answer, model, output_tokens)
    return answer


def _read_body(exchange: Exchange, head: Head) -> Answer:
    if head.status != 200:
        body = b"".join(piece for _, piece in body_pieces(exchange.reads, head))
        _fail("http status", f"{head.status} {_message(body)}")
    answer = Answer()
    for time_s, event in _events(exchange, head):
        if event == b"[DONE]":
            answer.done = True
            break
        _take_event(answer, time_s, event)
    return answer


def _events(exchange: Exchange, head: Head) -> Iterator[tuple[float, bytes]]:
    """Data of each server-sent event, with the time its end arrived."""
    pending = b""
    for time_s, piece in body_pieces(exchange.reads, head):
        pending = (pending + piece).replace(b"\r\n", b"\n")
        *whole, pending = pending.split(b"\n\n")
        for block in whole:
            lines = [line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:")]
            if lines:
                yield time_s, b"\n".join(lines)
            elif block.lstrip().startswith(b"{"):
                _fail("error body", _message(block))
    if pending.lstrip().startswith(b"{"):
        _fail("error body", _message(pending))


def _message(body: bytes) -> str:
    """The server's own words, as one short line."""
    try:
        data = parse_json(body)
        error = data.get("error", data)
        text = str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, AttributeError):
        text = body.decode("utf-8", "replace")
    return " ".join(text.split())[:300]


def _take_event(answer: Answer, time_s: float, event: bytes) -> None:
    try:
        data = parse_json(event)
    except ValueError:
        message = f"not JSON: {event[:60]!r}"
        _fail("malformed response", message)
    if not isinstance(data, dict):
        _fail("malformed response", f"not an object: {event[:60]!r}")
    if data.get("error"):
        _fail("error event", _message(event))
    answer.model = _of(str, data, "model") or answer.model
    carries_token = _take_choice(answer, data)
    usage = data.get("usage")
    if _take_usage(answer, usage, bool(data.get("choices")), carries_token):
        answer.token_times_s.append(time_s)
        answer.token_counts.append(answer.output_tokens if isinstance(usage, dict) else None)


def _take_choice(answer: Answer, data: dict[str, Any]) -> bool:
    """Keeps text and finish reason; whether the chunk has content (not only a role)."""
    choices = _of(list, data, "choices")
    if not choices:
        return False
    choice = _of(dict, {"choice": choices[0]}, "choice") or {}
    delta = _of(dict, choice, "delta") or choice
    content = _of(str, delta, "text") or _of(str, delta, "content") or ""
    reasoning = _of(str, delta, "reasoning_content") or _of(str, delta, "reasoning") or ""
    answer.texts.append(reasoning + content)
    answer.finish_reason = _of(str, choice, "finish_reason") or answer.finish_reason
    return bool(content or reasoning or delta.get("tool_calls"))


def _of(kind: type[_Kind], data: dict[str, Any], key: str) -> _Kind | None:
    """A field that may be null or absent, and else is what the API says."""
    value = data.get(key)
    if value is not None and not isinstance(value, kind):
        _fail("malformed response", f"{key} is {str(value)[:60]!r}")
    return value


def _counted(usage: dict[str, Any], key: str, before: int | None) -> int | None:
    count = _of(int, usage, key)
    if count is not None and count < 0:
        _fail("malformed response", f"{key} is {count}")
    return before if count is None else count


def _take_usage(answer: Answer, usage: object, has_choice: bool, has_content: bool) -> bool:
    """Whether the chunk carries a token.

    A server that counts as it streams (``continuous_usage_stats``) says so exactly, also for a
    token whose text is held back because a character is incomplete. Else content decides.
    """
    if not isinstance(usage, dict):
        return has_content
    before = answer.output_tokens or 0
    answer.prompt_tokens = _counted(usage, "prompt_tokens", answer.prompt_tokens)
    answer.output_tokens = _counted(usage, "completion_tokens", answer.output_tokens)
    cached = _of(dict, usage, "prompt_tokens_details") or {}
    answer.cached_tokens = _counted(cached, "cached_tokens", answer.cached_tokens)
    grown = (answer.output_tokens or 0) > before
    return has_content or (has_choice and grown)


def _check_complete(answer: Answer, exchange: Exchange) -> None:
    if not answer.done:
        detail = exchange.detail or "the stream ended without [DONE]"
        _fail("truncated stream", detail)
    if answer.finish_reason is None:
        _fail("truncated stream", "[DONE] without a finish_reason")


def _check_content(answer: Answer, model: str, output_tokens: int | None) -> None:
    if answer.prompt_tokens is None or answer.output_tokens is None:
        _fail("missing usage", "the server did not send usage")
    if answer.model != model:
        _fail("wrong model", f"asked {model}, answered as {answer.model}")
    if answer.output_tokens < 1 or not answer.token_times_s:
        _fail("zero tokens", f"usage says {answer.output_tokens} output tokens")
    if output_tokens is not None and answer.output_tokens != output_tokens:
        detail = f"asked {output_tokens} output tokens, got {answer.output_tokens}"
        _fail("wrong length", detail)
