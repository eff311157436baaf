"""What the mock server sends: its behaviours, and the bytes of each response."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

Fault = Literal[
    "none",
    "http 500",
    "error body",
    "error event",
    "drop",
    "silent truncation",
    "no usage",
    "zero tokens",
    "wrong model",
    "hang",
    "not http",
    "die",
]

Text = Literal["words", "degenerate", "empty", "clock", "first word, then noise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What the mock plays."""

    model: str = "mock"
    ttft_s: float = 0.2
    tpot_s: float = 0.02
    tokens_per_chunk: int = 1
    role_chunk: bool = False
    """Sends an early chunk that has a choice and no token, as chat endpoints do."""
    continuous_usage: bool = True
    split_writes: bool = False
    """Sends every frame byte by byte, as the worst network would."""
    fault: Fault = "none"
    fault_every: int = 1
    """The fault strikes every n-th request."""
    text: Text = "words"
    max_model_len: int = 100_000
    api_key: str = ""
    """Requests without it get 401."""
    prefix_caching: bool | None = None
    """What /metrics says; None: there is no /metrics."""
    cache_hits: bool = False
    """Every prompt is found in the prefix cache, by /metrics and by usage."""
    prompt_token_error: int = 0
    """Added to the prompt tokens that usage reports."""


def immediate_answer(fault: Fault) -> bytes | None:
    """A whole answer that is no stream, for the faults that give one."""
    error = {"error": {"message": "the mock was told to fail", "code": 500}}
    if fault == "http 500":
        return plain_response(500, error)
    if fault == "error body":
        return plain_response(200, error)
    if fault == "not http":
        return b"SSH-2.0-mock\r\n\r\n"
    return None


def plain_response(status: int, data: dict[str, Any]) -> bytes:
    """A JSON response with its length."""
    body = json.dumps(data).encode()
    head = f"HTTP/1.1 {status} x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def text_response(text: str) -> bytes:
    """A plain text with its length."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n\r\n"
    return (head + text).encode()


CLOCK_DIGITS = b"?????????????????"
"""Where a time is written into a frame: 17 characters, microseconds since 1970."""

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def frame(event: dict[str, Any] | str) -> bytes:
    """One server-sent event as one HTTP chunk."""
    text = event if isinstance(event, str) else json.dumps(event, separators=(",", ":"))
    payload = f"data: {text}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(payload), payload)


def role_event() -> dict[str, Any]:
    """What a chat endpoint sends before the first token."""
    return {
        "object": "chat.completion.chunk",
        "model": "mock",
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}],
    }


def metrics_text(behaviour: Behaviour, prompt_tokens: int) -> str:
    """The lines of vLLM's /metrics that tell of the prefix cache."""
    hits = prompt_tokens if behaviour.cache_hits else 0
    return (
        f'vllm:cache_config_info{{enable_prefix_caching="{behaviour.prefix_caching}"}} 1.0\n'
        f"vllm:prefix_cache_queries_total {prompt_tokens}\nvllm:prefix_cache_hits_total {hits}\n"
    )


@lru_cache(maxsize=64)
def response_frames(
    behaviour: Behaviour, fault: Fault, prompt_tokens: int, output_tokens: int, chat: bool = False
) -> tuple[bytes, ...]:
    """Head, then one entry per chunk; what follows the last token travels with it."""
    count = {"drop": output_tokens // 4, "silent truncation": output_tokens // 4, "zero tokens": 0}
    tokens = count.get(fault, output_tokens)
    prompt = prompt_tokens + behaviour.prompt_token_error
    model = "another" if fault == "wrong model" else behaviour.model
    frames = [STREAM_HEAD]
    for done, text in _chunks(behaviour, tokens):
        last = done == tokens and fault not in ("drop", "silent truncation", "error event")
        choice = {"index": 0, "delta": {"content": text}} if chat else {"index": 0, "text": text}
        kind = "chat.completion.chunk" if chat else "text_completion"
        event: dict[str, Any] = {"object": kind, "model": model, "choices": [choice]}
        event["choices"][0]["finish_reason"] = "length" if last else None
        if behaviour.continuous_usage and fault != "no usage":
            event["usage"] = {"prompt_tokens": prompt, "completion_tokens": done}
        frames.append(frame(event))
    frames.extend([b""] if len(frames) == 1 else [])
    usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": tokens}
    if behaviour.cache_hits:
        usage["prompt_tokens_details"] = {"cached_tokens": prompt}
    frames[-1] += _ending(fault, model, usage, chat)
    return tuple(frames)


def _ending(fault: Fault, model: str, usage: dict[str, Any], chat: bool) -> bytes:
    """Usage, [DONE] and the last chunk, as far as the fault lets them come."""
    if fault == "drop":
        return b""
    ending = b""
    if fault == "error event":
        ending += frame({"error": {"message": "the mock was told to fail"}})
    elif fault == "zero tokens":
        ending += frame({"model": model, "choices": [{"text": "", "finish_reason": "stop"}]})
    if fault != "no usage":
        kind = "chat.completion.chunk" if chat else "text_completion"
        ending += frame({"object": kind, "model": model, "choices": [], "usage": usage})
    return ending + frame("[DONE]") + b"0\r\n\r\n"


def _chunks(behaviour: Behaviour, tokens: int) -> Iterator[tuple[int, str]]:
    """Tokens so far and text of each chunk."""
    done = 0
    while done < tokens:
        size = min(behaviour.tokens_per_chunk, tokens - done)
        text = "".join(_word(behaviour.text, done + offset) for offset in range(size))
        done += size
        yield done, text


def _word(kind: Text, index: int) -> str:
    if kind == "degenerate":
        return "!"
    if kind == "empty":
        return ""
    if kind == "clock":
        return f" {CLOCK_DIGITS.decode()}"
    if kind == "first word, then noise" and index:
        return hashlib.sha256(f"{index}".encode()).hexdigest()[:8]
    return f" w{index * index % 97}"
