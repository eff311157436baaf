"""Result files of ``vllm bench serve --save-result --save-detailed``, read for comparison."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from hwtune.domain.errors import InputError
from hwtune.domain.saved import SavedRequest, SavedRun

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
    except (OSError, ValueError) as error:
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
    except (TypeError, ValueError, KeyError, IndexError) as error:
        message = f"{path}: damaged details ({error})"
        raise InputError(message) from None


def _saved_run(path: Path, raw: bytes, data: dict[str, Any]) -> SavedRun:
    texts = data.get("generated_texts") or [None] * len(data["ttfts"])
    columns = zip(*(data[key] for key in _DETAILS), texts, strict=True)
    return SavedRun(
        source=str(path),
        sha256=hashlib.sha256(raw).hexdigest(),
        workload={name: data.get(key) for name, key in _WORKLOAD.items()},
        requests=tuple(_request(*column) for column in columns),
        output_throughput=float(data.get("output_throughput") or 0.0),
    )


def _request(
    input_tokens: int,
    output_tokens: int,
    ttft_s: float,
    itls_s: list[float],
    error: str,
    text: str | None,
) -> SavedRequest:
    """A request without an answer failed, whether or not the tool says so."""
    failed = " ".join(str(error).split())[-200:] if error else ""
    if not failed and (ttft_s <= 0 or output_tokens < 1):
        failed = "no token"
    return SavedRequest(
        input_tokens=int(input_tokens),
        output_tokens=int(output_tokens),
        ttft_s=float(ttft_s),
        e2el_s=float(ttft_s) + sum(itls_s),
        text=text,
        error=failed,
    )
