"""Result directories of ``aiperf profile``: ``profile_export.jsonl``, one record per request.

Fields as of aiperf 0.3 to 0.13 (common/models/record_models.py, MetricRecordInfo). Its ITL is what
others call TPOT; here TPOT is computed from TTFT, latency and tokens as for every other file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hwtune.domain.json_text import parse_json
from hwtune.domain.saved_run import SavedRequest, SavedRun
from hwtune.io.typed import number

RECORDS_FILE = "profile_export.jsonl"
SUMMARY_FILE = "profile_export_aiperf.json"

_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "sec": 1.0, "s": 1.0}


def is_aiperf_summary(data: object) -> bool:
    """Whether a JSON object is the summary, which holds no requests."""
    return isinstance(data, dict) and "input_config" in data and "request_latency" in data


def is_aiperf_record(data: object) -> bool:
    """Whether a line of JSON is one request."""
    return isinstance(data, dict) and "metadata" in data and "metrics" in data


def aiperf_run(source: str, sha256: str, records: list[Any], summary: object) -> SavedRun:
    """One run from its records, and its summary for the workload.

    Raises:
        TypeError, ValueError, KeyError: a record is damaged.
    """
    kept = [r for r in records if r["metadata"].get("benchmark_phase", "profiling") == "profiling"]
    kept.sort(key=_place)
    requests = tuple(_request(row, record) for row, record in enumerate(kept, start=1))
    times = [_period(record) for record in kept]
    started = min((start for start, _ in times), default=None)
    ended = max((end for _, end in times), default=None)
    tokens = sum(request.output_tokens for request in requests if not request.error)
    seconds = 0.0 if started is None or ended is None else ended - started
    return SavedRun(
        source=source,
        sha256=sha256,
        workload={"client": "aiperf", "requests": len(kept), **_workload(summary)},
        requests=requests,
        output_throughput=tokens / seconds if seconds > 0 else 0.0,
        started_unix_s=started,
        ended_unix_s=ended,
    )


def read_summary(path: Path) -> object:
    """The summary beside the records, or None."""
    try:
        data: object = parse_json((path.parent / SUMMARY_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data


def _place(record: dict[str, Any]) -> tuple[int, int]:
    """Position in the data set, so that two runs pair up."""
    metadata = record["metadata"]
    return int(metadata["session_num"]), int(metadata.get("turn_index") or 0)


def _period(record: dict[str, Any]) -> tuple[float, float]:
    metadata = record["metadata"]
    return (
        number(metadata["request_start_ns"], "request_start_ns") * 1e-9,
        number(metadata["request_end_ns"], "request_end_ns") * 1e-9,
    )


def _request(row: int, record: dict[str, Any]) -> SavedRequest:
    error = record.get("error")
    metrics = record["metrics"]
    failed = " ".join(str(error.get("message") or error).split())[-200:] if error else ""
    if record["metadata"].get("was_cancelled") and not failed:
        failed = "cancelled"
    tokens = _count(metrics, "usage_completion_tokens", "output_sequence_length")
    ttft = _time(metrics, "time_to_first_token")
    latency = _time(metrics, "request_latency")
    if not failed and not (tokens and ttft and latency and latency >= ttft):
        message = f"record {row} has no error, {tokens} tokens, TTFT {ttft} s, latency {latency} s"
        raise ValueError(message)
    return SavedRequest(
        input_tokens=_count(metrics, "usage_prompt_tokens", "input_sequence_length") or 0,
        output_tokens=tokens or 0,
        ttft_s=ttft or 0.0,
        e2el_s=latency or 0.0,
        text=None,
        error=failed,
        start_s=_period(record)[0],
        key="{}/{}".format(*_place(record)),
    )


def _count(metrics: dict[str, Any], *names: str) -> int | None:
    """The server's own count before the client's."""
    for name in names:
        if name in metrics:
            return int(number(metrics[name]["value"], name))
    return None


def _time(metrics: dict[str, Any], name: str) -> float | None:
    """Seconds, whatever the unit."""
    if name not in metrics:
        return None
    return number(metrics[name]["value"], name) * _SECONDS[metrics[name]["unit"]]


def _workload(summary: object) -> dict[str, object]:
    """Model, concurrency and rate, in the spelling of this or of earlier releases."""
    config = summary.get("input_config") if isinstance(summary, dict) else None
    if not isinstance(config, dict):
        return {"model": None}
    load: dict[str, object] = config.get("loadgen") or next(iter(config.get("phases") or []), {})
    endpoint = config.get("endpoint") or {}
    names = endpoint.get("model_names") or [
        item.get("name") for item in (config.get("models") or {}).get("items", [])
    ]
    return {
        "model": ", ".join(map(str, names)) or None,
        "endpoint": endpoint.get("type"),
        "concurrency": load.get("concurrency"),
        "request rate": load.get("request_rate") or load.get("rate"),
    }
