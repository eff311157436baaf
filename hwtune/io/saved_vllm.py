"""Result files of ``vllm bench serve --save-result --save-detailed``, and of what speaks its format.

``vllm-rs bench serve`` and sglang's ``bench_serving`` write the same arrays; ``--append-result``
writes one JSON object per line.
"""

from __future__ import annotations

import datetime
import math
from typing import Any

from hwtune.domain.saved_run import SavedRequest, SavedRun
from hwtune.domain.stats import mean
from hwtune.io.typed import LARGEST, number

_MOST_OFF = 1.5
"""Versions differ in what a mean runs over; units differ by a thousand."""
_DETAILS = ("input_lens", "output_lens", "ttfts", "itls", "errors")
_WORKLOAD = {
    "model": "model_id",
    "requests": "num_prompts",
    "concurrency": "max_concurrency",
    "request rate": "request_rate",
    "endpoint": "endpoint_type",
}


def is_vllm_result(data: object) -> bool:
    """Whether a JSON object is such a result, detailed or not."""
    return isinstance(data, dict) and "completed" in data


def vllm_run(source: str, sha256: str, data: dict[str, Any]) -> SavedRun:
    """One detailed result.

    Raises:
        TypeError, ValueError: saved without details, or the details are damaged; says which.
    """
    missing = [key for key in _DETAILS if not isinstance(data.get(key), list)]
    if missing:
        message = f"no {missing[0]}; save it with --save-result --save-detailed"
        raise ValueError(message)
    try:
        return _saved_run(source, sha256, data)
    except (TypeError, ValueError) as error:
        message = f"damaged details ({error})"
        raise ValueError(message) from None


def _saved_run(source: str, sha256: str, data: dict[str, Any]) -> SavedRun:
    count = len(data["ttfts"])
    texts = data.get("generated_texts") or [None] * count
    starts = data.get("start_times") or [None] * count
    rows = zip(*(data[key] for key in _DETAILS), texts, starts, strict=True)
    requests = tuple(_request(number, *row) for number, row in enumerate(rows, start=1))
    _check_counts(data, requests)
    _check_means(data, requests, [step for row in data["itls"] for step in row])
    throughput = data.get("output_throughput")
    workload = {name: _scalar(data.get(key), key) for name, key in _WORKLOAD.items()}
    workload["endpoint"] = workload["endpoint"] or _scalar(data.get("backend"), "backend")
    started, ended = _period(data)
    return SavedRun(
        source=source,
        sha256=sha256,
        workload={"client": data.get("client", "vllm bench serve"), **workload},
        requests=requests,
        output_throughput=0.0 if throughput is None else _rate(throughput),
        started_unix_s=started,
        ended_unix_s=ended,
    )


def _period(data: dict[str, Any]) -> tuple[float | None, float | None]:
    """Start and end, from the ``date`` that is written at the end and the ``duration``."""
    try:
        ended = datetime.datetime.strptime(data["date"], "%Y%m%d-%H%M%S").timestamp()
        return ended - number(data["duration"], "duration"), ended
    except (KeyError, TypeError, ValueError):
        return None, None


def _scalar(value: object, key: str) -> object:
    """``request_rate`` may be the text "inf", or Infinity in a file of an older tool: kept as text."""
    if value is None or isinstance(value, str):
        return value
    return "inf" if value == math.inf else number(value, key)


def _rate(value: object) -> float:
    rate = number(value, "output_throughput")
    if rate < 0:
        message = f"output_throughput is {rate}"
        raise ValueError(message)
    return rate


def _check_counts(data: dict[str, Any], requests: tuple[SavedRequest, ...]) -> None:
    """The file's own counts agree with its rows."""
    failed = sum(bool(request.error) for request in requests)
    counted = {"completed": len(requests) - failed, "failed": failed}
    for key, count in counted.items():
        said = data.get(key, count)
        if type(said) is not int or said != count:
            message = f"`{key}` is {str(said)[:20]}, the rows say {count}"
            raise ValueError(message)


def _check_means(
    data: dict[str, Any], requests: tuple[SavedRequest, ...], steps: list[float]
) -> None:
    """The file's own means, in milliseconds, agree with its rows: else one has another unit."""
    good = [request.ttft_s for request in requests if not request.error]
    for key, values in (("mean_ttft_ms", good), ("mean_itl_ms", steps)):
        said = data.get(key)
        if not values or not said:
            continue
        found = mean(values) * 1e3
        if not 1 / _MOST_OFF < number(said, key) / max(found, 1e-9) < _MOST_OFF:
            message = f"`{key}` is {said:g}, its rows say {found:g}: another unit, or altered"
            raise ValueError(message)


def _request(
    row: int,
    input_tokens: object,
    output_tokens: object,
    ttft_s: object,
    itls_s: object,
    error: object,
    text: object,
    start_s: object,
) -> SavedRequest:
    """A request that the tool marks as failed, or that gave nothing at all, failed."""
    failed = _last_line(str(error)) if error else ""
    tokens, first = _count(output_tokens, f"output_lens[{row}]"), number(ttft_s, f"ttfts[{row}]")
    if not isinstance(itls_s, list):
        message = f"itls[{row}] is no list"
        raise TypeError(message)
    steps = [number(step, f"itls[{row}]") for step in itls_s]
    if not failed and (first, tokens) in ((0, 0), (0, 1)) and not steps:
        failed = "no token"
    if not failed:
        _check_times(row, tokens, first, steps)
    if text is not None and not isinstance(text, str):
        message = f"generated_texts[{row}] is no text"
        raise TypeError(message)
    return SavedRequest(
        input_tokens=_count(input_tokens, f"input_lens[{row}]"),
        output_tokens=tokens,
        ttft_s=float(first),
        e2el_s=math.fsum((first, *steps)),
        text=text,
        error=failed,
        start_s=None if start_s is None else float(number(start_s, f"start_times[{row}]")),
    )


def _last_line(error: str) -> str:
    """Of a traceback the line that says what it was."""
    lines = [" ".join(line.split()) for line in error.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "failed without a reason"


def _check_times(row: int, tokens: int, ttft_s: float, steps: list[float]) -> None:
    """An answered request has a first token and, with more than one, times between them."""
    problem = ""
    if tokens < 1:
        problem = f"output_lens[{row}] is {tokens} without an error"
    elif ttft_s <= 0:
        problem = f"ttfts[{row}] is {ttft_s}"
    elif steps and min(steps) < 0:
        problem = f"itls[{row}] holds {min(steps)}"
    elif tokens > 1 and not sum(steps) > 0:
        problem = f"itls[{row}] has no time for {tokens} tokens"
    if problem:
        raise ValueError(problem)


def _count(value: object, key: str) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST:
        message = f"{key} is no number of tokens"
        raise TypeError(message)
    return value
