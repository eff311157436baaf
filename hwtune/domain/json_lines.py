"""Log lines that are JSON objects: vLLM's JSON logging, Docker's json-file, log collectors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from hwtune.domain.json_text import parse_json

_MESSAGE = (
    "message",
    "msg",
    "log",
    "event",
    "text",
    "MESSAGE",
    "textPayload",
    "@message",
    "body",
    "line",
    "data",
)
_LEVEL = ("level", "levelname", "severity", "log.level")
_TRACE = ("exc_info", "exception", "exc_text", "stack_trace", "traceback", "error.stack_trace")
_TIME = ("asctime", "timestamp", "time", "ts", "@timestamp")
_MAX_CHARS = 262_144
"""Longer objects are dumps, not log lines."""


def unwrap_json(text: str) -> dict[str, str] | None:
    """Message, level, time, process and source of a JSON log line, or None when it is none.

    Objects inside a string (a collector that wraps JSON logging) are unwrapped once more.
    """
    text = text.strip().rstrip(",]")
    if not text.endswith("}") or len(text) > _MAX_CHARS:
        return None
    try:
        data = parse_json(text)
    except ValueError:
        return None
    if isinstance(data, dict) and isinstance(data.get("jsonPayload"), dict):
        data = {**data, **data["jsonPayload"]}
    if not isinstance(data, dict) or _message_key(data) is None:
        return None
    record = _record(data)
    inner = unwrap_json(record["message"]) if record["message"].startswith("{") else None
    return record if inner is None else {**record, **{k: v for k, v in inner.items() if v}}


def split_json(text: str) -> Iterator[str]:
    """A JSON line whose message holds a progress bar's bare CRs -> one such line per piece."""
    if "\\r" not in text or not text.rstrip().endswith("}"):
        yield text
        return
    start = text.find("{")
    try:
        data = parse_json(text[start:]) if start >= 0 and len(text) <= _MAX_CHARS else None
    except ValueError:
        data = None
    key = _message_key(data) if isinstance(data, dict) else None
    if key is None or not isinstance(data, dict):
        yield text
        return
    pieces = [piece for piece in str(data[key]).rstrip("\r\n").split("\r") if piece]
    for piece in pieces or [""]:
        yield text[:start] + json.dumps({**data, key: piece})


def _message_key(data: Mapping[str, object]) -> str | None:
    return next((key for key in _MESSAGE if isinstance(data.get(key), str)), None)


def _record(data: Mapping[str, object]) -> dict[str, str]:
    file = data.get("filename") or data.get("pathname") or data.get("name") or data.get("logger")
    line = data.get("lineno")
    return {
        "message": str(data[_message_key(data) or ""]),
        "trace": _text(_first(data, _TRACE)),
        "level": _text(_first(data, _LEVEL)),
        "time": _text(_first(data, _TIME)),
        "process": _process(data),
        "source": f"{file}:{line}" if file and line is not None else _text(file),
    }


def _process(data: Mapping[str, object]) -> str:
    name = data.get("processName") or data.get("process_name")
    pid = data.get("process") or data.get("pid")
    if isinstance(pid, (str, int)) and name:
        return f"{name} pid={pid}"
    return f"pid={pid}" if isinstance(pid, int) else _text(name or pid)


def _first(data: Mapping[str, object], keys: tuple[str, ...]) -> object:
    return next((data[key] for key in keys if data.get(key) is not None), None)


def _text(value: object) -> str:
    return "" if value is None else str(value)
