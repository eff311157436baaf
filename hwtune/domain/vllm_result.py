"""One arm and tier of a run in the JSON that ``vllm bench serve --save-detailed`` writes.

Keys and definitions as of vLLM 0.32 (vllm/benchmarks/serve.py): TTFT in seconds per request, ``itls``
as the gaps between the chunks of each request. A failed request has an error and no times.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

from hwtune.domain.bench import RequestRecord
from hwtune.domain.bench_values import is_good
from hwtune.domain.launch import Arm
from hwtune.domain.stats import mean
from hwtune.domain.workload import Design, Tier

CLIENT: Final = "hwtune ab-bench"
_PERCENTILES: Final = (50, 90, 95, 99)


def vllm_result(
    design: Design, tier: Tier, arm: Arm, records: Sequence[RequestRecord]
) -> dict[str, Any]:
    """The result of one arm in one tier.

    Args:
        design: of the run.
        tier: of the records.
        arm: whose records they are.
        records: the last attempt at every block, in the order of pairs and prompts.
    """
    good = [record for record in records if record.failure is None]
    seconds = _busy_s(records)
    inputs = sum(record.prompt_tokens or 0 for record in good)
    outputs = sum(record.output_tokens or 0 for record in good)
    met = sum(is_good(record, design.goals) for record in good)
    return {
        **_header(design, tier, arm, records),
        "duration": seconds,
        "completed": len(good),
        "failed": len(records) - len(good),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(good) / seconds,
        "request_goodput": met / seconds if design.goals else None,
        "output_throughput": outputs / seconds,
        "total_token_throughput": (inputs + outputs) / seconds,
        "input_lens": [record.prompt_tokens or 0 for record in records],
        "output_lens": [record.output_tokens or 0 for record in records],
        "ttfts": [record.ttft_s or 0.0 for record in records],
        "itls": [_gaps(record) for record in records],
        "latencies": [record.e2el_s or 0.0 for record in records],
        "queue_times": [record.late_s for record in records],
        "start_times": [record.started_unix_s for record in records],
        "generated_texts": [record.text for record in records],
        "errors": [f"{r.failure}: {r.detail}" if r.failure else "" for r in records],
        **_statistics("ttft", [record.ttft_s or 0.0 for record in good]),
        **_statistics("tpot", [r.tpot_s for r in good if r.tpot_s is not None]),
        **_statistics("itl", [gap for record in good for gap in _gaps(record)]),
        **_statistics("e2el", [record.e2el_s or 0.0 for record in good]),
    }


def _header(
    design: Design, tier: Tier, arm: Arm, records: Sequence[RequestRecord]
) -> dict[str, Any]:
    backend = "openai-chat" if design.endpoint == "chat" else "openai"
    ended = max(record.ended_unix_s for record in records)
    date = datetime.datetime.fromtimestamp(ended)
    return {
        "date": date.strftime("%Y%m%d-%H%M%S"),
        "client": CLIENT,
        "endpoint_type": backend,
        "backend": backend,
        "label": f"{arm} {tier.name}",
        "model_id": design.model,
        "tokenizer_id": design.model,
        "num_prompts": len(records),
        "request_rate": design.rate_per_s or "inf",
        "burstiness": 1.0,
        "max_concurrency": design.concurrency if design.arrival == "closed" else None,
    }


def _busy_s(records: Iterable[RequestRecord]) -> float:
    """Seconds inside the arm's blocks: the other arm's blocks and the rests lie between."""
    spans: dict[int, list[float]] = {}
    for record in records:
        spans.setdefault(record.pair, []).extend((record.started_unix_s, record.ended_unix_s))
    return max(math.fsum(max(times) - min(times) for times in spans.values()), 1e-9)


def _gaps(record: RequestRecord) -> list[float]:
    """Sums to E2EL - TTFT."""
    return [after - before for before, after in pairwise(record.chunk_times_s)]


def _statistics(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """Milliseconds, under vLLM's keys; zeros where nothing was measured, as there."""
    import numpy as np

    values = np.asarray(seconds or [0.0], dtype=float) * 1e3
    found = {
        f"mean_{name}_ms": mean(values.tolist()),
        f"median_{name}_ms": float(np.median(values)),
        f"std_{name}_ms": float(np.std(values)),
    }
    for percent in _PERCENTILES:
        found[f"p{percent}_{name}_ms"] = float(np.percentile(values, percent))
    return found
