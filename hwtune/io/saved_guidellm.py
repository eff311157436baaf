"""Result files of ``guidellm``: ``benchmarks.json``, with every request of every benchmark.

Fields as of guidellm 0.2 to 0.8 (benchmark/benchmark.py, later schemas/base/request_stats.py). Its
"TPOT" is latency over tokens, first one included; here TPOT is computed as for every other file.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from hwtune.domain.json_text import parse_json
from hwtune.domain.saved_run import SavedRequest, SavedRun
from hwtune.io.typed import number


def is_guidellm_report(data: object) -> bool:
    """Whether a JSON object is such a report."""
    return isinstance(data, dict) and isinstance(data.get("benchmarks"), list)


def guidellm_runs(source: str, sha256: str, data: dict[str, Any]) -> dict[str, SavedRun]:
    """Every benchmark of a report, by its strategy.

    Raises:
        TypeError, ValueError, KeyError, AttributeError: a benchmark is damaged.
    """
    runs: dict[str, SavedRun] = {}
    for benchmark in data["benchmarks"]:
        strategy = _strategy(benchmark)
        name = _title(strategy)
        if name in runs:
            message = f"two benchmarks of the strategy {name}"
            raise ValueError(message)
        runs[name] = _run(source, f"{sha256}/{name}", benchmark, strategy)
    return runs


def _strategy(benchmark: dict[str, Any]) -> dict[str, Any]:
    """``config.strategy``, until 0.3 ``args.strategy``."""
    found = (benchmark.get("config") or benchmark.get("args") or {}).get("strategy")
    return found if isinstance(found, dict) else {}


def _title(strategy: dict[str, Any]) -> str:
    amount = strategy.get("streams") or strategy.get("rate")
    kind = str(strategy.get("type_") or strategy.get("kind") or "benchmark")
    return kind if amount is None else f"{kind} {amount:g}"


def _run(source: str, sha256: str, benchmark: dict[str, Any], strategy: dict[str, Any]) -> SavedRun:
    groups = benchmark["requests"]
    answered = [_answered(row, item) for row, item in enumerate(groups["successful"] or [], 1)]
    failed = [
        _failed(item, status)
        for status in ("errored", "incomplete")
        for item in groups.get(status) or []
    ]
    requests = sorted([*answered, *failed], key=lambda request: request.start_s or 0.0)
    started = number(benchmark["start_time"], "start_time")
    ended = number(benchmark["end_time"], "end_time")
    tokens = sum(request.output_tokens for request in answered)
    return SavedRun(
        source=source,
        sha256=sha256,
        workload={
            "client": "guidellm",
            "model": _model(benchmark),
            "requests": len(requests),
            "strategy": _title(strategy),
        },
        requests=tuple(requests),
        output_throughput=tokens / (ended - started) if ended > started else 0.0,
        started_unix_s=started,
        ended_unix_s=ended,
    )


def _model(benchmark: dict[str, Any]) -> object:
    backend = (benchmark.get("config") or {}).get("backend") or {}
    return backend.get("model") or (benchmark.get("worker") or {}).get("backend_model")


def _timings(item: dict[str, Any]) -> dict[str, Any]:
    found = (item.get("info") or {}).get("timings")
    return found if isinstance(found, dict) else {}


def _start(item: dict[str, Any]) -> float | None:
    value = item.get("request_start_time") or _timings(item).get("request_start")
    value = item.get("start_time") if value is None else value
    return None if value is None else number(value, "request_start_time")


def _answered(row: int, item: dict[str, Any]) -> SavedRequest:
    start = _start(item)
    last = _timings(item).get("last_token_iteration") or item.get("last_token_time")
    tokens, ttft_ms = item["output_tokens"], item["time_to_first_token_ms"]
    if None in (start, last, tokens, ttft_ms) or tokens < 1:
        message = f"successful request {row} lacks times or tokens; was the run streaming?"
        raise ValueError(message)
    ttft = number(ttft_ms, "time_to_first_token_ms") * 1e-3
    e2el = number(last, "last_token_iteration") - (start or 0.0)
    if not 0 < ttft <= e2el + 1e-6:
        message = f"successful request {row} has TTFT {ttft} s and its last token at {e2el} s"
        raise ValueError(message)
    text = "".join(part for part in (item.get("reasoning_output"), item.get("output")) if part)
    return SavedRequest(
        input_tokens=int(number(item.get("prompt_tokens") or 0, "prompt_tokens")),
        output_tokens=int(number(tokens, "output_tokens")),
        ttft_s=ttft,
        e2el_s=max(ttft, e2el),
        text=text,
        error="",
        start_s=start,
        key=_key(item),
    )


def _key(item: dict[str, Any]) -> str | None:
    """Name of the prompt: requests stand in the order in which they ended."""
    asked = item.get("prompt") or item.get("request_args")
    if not isinstance(asked, str):
        return None
    try:
        body = parse_json(asked).get("body") or {}
        asked = json.dumps(body.get("prompt") or body.get("messages") or body)
    except (ValueError, AttributeError):
        pass
    return hashlib.sha256(asked.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _failed(item: dict[str, Any], status: str) -> SavedRequest:
    said = item.get("error") or (item.get("info") or {}).get("error") or status
    reason = " ".join(str(said).split())[-200:]
    return SavedRequest(
        input_tokens=int(item.get("prompt_tokens") or 0),
        output_tokens=int(item.get("output_tokens") or 0),
        ttft_s=0.0,
        e2el_s=0.0,
        text=None,
        error=reason,
        start_s=_start(item),
        key=_key(item),
    )
