"""Result files of ``vllm bench serve --save-result --save-detailed``, read for comparison."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from hwtune.domain.errors import InputError
from hwtune.domain.saved import SavedRequest, SavedRun
from hwtune.io.typed import LARGEST, number

_DETAILS = ("input_lens", "output_lens", "ttfts", "itls", "errors")
_WORKLOAD = {
    "model": "model_id",
    "requests": "num_prompts",
    "concurrency": "max_concurrency",
    "request rate": "request_rate",
    "endpoint": "endpoint_type",
}


def pair_results(
    baseline: Path, candidate: Path
) -> tuple[list[tuple[str, SavedRun, SavedRun]], list[str]]:
    """Result files of two sides, paired by name; two single files are a pair whatever they are called.

    Returns:
        (tier, baseline, candidate) per pair, and a note for each file without a partner.

    Raises:
        InputError: nothing can be paired, or a file is not a detailed result.
    """
    first, second = _result_files(baseline), _result_files(candidate)
    if len(first) == len(second) == 1:
        name, path = next(iter(first.items()))
        return [(name, read_saved(path), read_saved(next(iter(second.values()))))], []
    common = [name for name in first if name in second]
    if not common:
        message = f"{baseline} and {candidate} have no result file of the same name"
        raise InputError(message)
    alone = sorted(set(first) ^ set(second))
    notes = [f"{name}: only on one side, left out" for name in alone]
    return [(n, read_saved(first[n]), read_saved(second[n])) for n in common], notes


def _result_files(path: Path) -> dict[str, Path]:
    """Tier name -> file."""
    if path.is_file():
        return {_tier_name(path): path}
    if not path.is_dir():
        message = f"{path}: no such file or directory"
        raise InputError(message)
    files = {_tier_name(file): file for file in sorted(path.glob("*.json"))}
    if not files:
        message = f"{path}: holds no .json result"
        raise InputError(message)
    return files


def _tier_name(path: Path) -> str:
    return path.stem.removeprefix("result_")


def read_saved(path: Path) -> SavedRun:
    """One detailed result.

    Raises:
        InputError: unreadable, not a result of vllm bench serve, or saved without details.
    """
    try:
        raw = path.read_bytes()
        data = json.loads(raw)
    except (OSError, ValueError, RecursionError) as error:
        message = f"{path}: cannot be read as JSON ({error})"
        raise InputError(message) from None
    if not isinstance(data, dict) or "completed" not in data:
        message = f"{path}: not a result of vllm bench serve (no key `completed`)"
        raise InputError(message)
    missing = [key for key in _DETAILS if not isinstance(data.get(key), list)]
    if missing:
        message = f"{path}: no {missing[0]}; save it with --save-result --save-detailed"
        raise InputError(message)
    try:
        return _saved_run(path, raw, data)
    except (TypeError, ValueError) as error:
        message = f"{path}: damaged details ({error})"
        raise InputError(message) from None


def _saved_run(path: Path, raw: bytes, data: dict[str, Any]) -> SavedRun:
    texts = data.get("generated_texts") or [None] * len(data["ttfts"])
    rows = zip(*(data[key] for key in _DETAILS), texts, strict=True)
    requests = tuple(_request(number, *row) for number, row in enumerate(rows, start=1))
    _check_counts(data, requests)
    throughput = data.get("output_throughput")
    return SavedRun(
        source=str(path),
        sha256=hashlib.sha256(raw).hexdigest(),
        workload={name: _scalar(data.get(key), key) for name, key in _WORKLOAD.items()},
        requests=requests,
        output_throughput=0.0 if throughput is None else _rate(throughput),
    )


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


def _request(
    row: int,
    input_tokens: object,
    output_tokens: object,
    ttft_s: object,
    itls_s: object,
    error: object,
    text: object,
) -> SavedRequest:
    """A request that the tool marks as failed, or that gave nothing at all, failed."""
    failed = " ".join(str(error).split())[-200:] if error else ""
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
    )


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
