"""Log lines that are JSON objects: vLLM's JSON logging, Docker's json-file, log collectors."""

from __future__ import annotations

import json
from collections.abc import Mapping

_MESSAGE = ("message", "msg", "log", "event", "text", "MESSAGE")
_LEVEL = ("level", "levelname", "severity", "log.level")
_TIME = ("asctime", "timestamp", "time", "ts", "@timestamp")
_MAX_CHARS = 262_144
"""Longer objects are dumps, not log lines."""


def unwrap_json(text: str) -> dict[str, str] | None:
    """Message, level, time, process and source of a JSON log line, or None when it is none.

    Objects inside a string (a collector that wraps JSON logging) are unwrapped once more.
    """
    text = text.strip()
    if not text.endswith("}") or len(text) > _MAX_CHARS:
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or not isinstance(_first(data, _MESSAGE), str):
        return None
    record = _record(data)
    inner = unwrap_json(record["message"]) if record["message"].startswith("{") else None
    return record if inner is None else {**record, **{k: v for k, v in inner.items() if v}}


def _record(data: Mapping[str, object]) -> dict[str, str]:
    file = data.get("filename") or data.get("pathname") or data.get("name") or data.get("logger")
    line = data.get("lineno")
    return {
        "message": str(_first(data, _MESSAGE)),
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
