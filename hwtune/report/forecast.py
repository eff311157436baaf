"""A prediction for people and for machines. Computes nothing but shares of what it shows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from hwtune.domain.scheduler.attention_work import Work
from hwtune.domain.scheduler.prediction import KernelForecast
from hwtune.domain.scheduler.question import Prediction
from hwtune.domain.scheduler.speedup import ExpectedChange, work_share
from hwtune.report.tables import Cell, Column, Format, Table, columns, render

SCHEMA_VERSION: Final = 1

_KERNEL_COLUMNS: Final = columns(
    "kernel=kernel",
    "phase=made for",
    "hits=hits",
    "steps=of steps",
    Column(key="hit_pct", title="hit rate", decimals=1, suffix=" %"),
    Column(key="tokens_pct", title="tokens", decimals=1, suffix=" %"),
    Column(key="flops_pct", title="attention FLOPs", decimals=1, suffix=" %"),
    Column(key="bytes_pct", title="attention bytes", decimals=1, suffix=" %"),
)
_REASON_COLUMNS: Final = columns(
    "kernel=kernel",
    "reason=why it does not take the step",
    "steps=steps",
    Column(key="own_steps", title="of those it is made for"),
)


def show_prediction(prediction: Prediction, kind: Format) -> str:
    """The answer as text, without a final newline."""
    if kind is Format.JSON:
        return json.dumps(prediction_record(prediction), indent=2, allow_nan=False)
    if kind is Format.CSV:
        return render(kernel_table(prediction), kind)
    mark = "- " if kind is Format.MARKDOWN else ""
    parts = ["\n".join(f"{mark}{line}" for line in _head(prediction))]
    if prediction.forecast.kernels:
        parts += [render(kernel_table(prediction), kind), render(reason_table(prediction), kind)]
    else:
        parts.append("The profile has no kernels: every step takes vLLM's own path.")
    parts += [render(table, kind) for table in _class_tables(prediction)]
    if prediction.change is not None:
        parts.append(change_text(prediction.change))
    if prediction.notes:
        parts.append("\n".join(f"{mark}note: {note}" for note in prediction.notes))
    return "\n\n".join(parts)


def _head(prediction: Prediction) -> Iterator[str]:
    setup, config = prediction.setup, prediction.setup.scenario.config
    page, forecast = setup.page, prediction.forecast
    groups = len(setup.scenario.groups)
    yield (
        f"Server: {page.model.architecture} on {setup.profile.name}, page {page.block_size_tokens},"
        f" {groups} cache group{'s' * (groups != 1)}, {_pool(prediction)}"
    )
    yield (
        f"Scheduler: vLLM {config.vllm_version}, {config.max_num_batched_tokens} tokens per step"
        f" ({setup.budget_source}), {config.max_num_seqs} sequences,"
        f" prefix caching {'on' if config.prefix_caching else 'off'}"
    )
    yield f"Workload: {_workload(prediction)}"
    if prediction.duration is not None:
        yield f"Time: {prediction.duration.text}; nothing here predicts it"
    steps = forecast.work.steps
    yield (
        f"Steps: {steps:,}, of which {forecast.prefill_steps:,} compute prompt tokens"
        f" ({_pct(forecast.prefill_steps, steps)}), {forecast.mixed_steps:,} of them beside decodes"
        + (
            f"; {prediction.played.preemptions} preemptions"
            if prediction.played.preemptions
            else ""
        )
    )


def _pool(prediction: Prediction) -> str:
    blocks = prediction.setup.scenario.num_blocks
    return f"{blocks:,} blocks" if prediction.setup.capacity else "unlimited blocks"


def _workload(prediction: Prediction) -> str:
    workload = prediction.workload
    at = f", closed loop at concurrency {workload.concurrency}" if workload.concurrency else ""
    return f"{workload.title}{at if workload.pacing == 'closed loop' else ''}"


def _pct(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "0 %"


def kernel_table(prediction: Prediction) -> Table:
    """One row per kernel: hits, and what it would take over."""
    whole = prediction.forecast.work
    rows = tuple(_kernel_row(kernel, whole) for kernel in prediction.forecast.kernels)
    return Table(columns=_KERNEL_COLUMNS, rows=rows)


def _kernel_row(kernel: KernelForecast, whole: Work) -> tuple[Cell, ...]:
    rate = kernel.hit_rate
    return (
        kernel.name,
        kernel.phase,
        kernel.hit_steps,
        kernel.eligible_steps,
        None if rate is None else 100 * rate,
        100 * work_share(kernel.work, whole, "tokens"),
        100 * work_share(kernel.work, whole, "flops"),
        100 * work_share(kernel.work, whole, "bytes"),
    )


def reason_table(prediction: Prediction) -> Table:
    """Fall-backs by kernel and reason, most frequent first."""
    rows = tuple(
        (kernel.name, reason, steps, kernel.eligible_fallbacks.get(reason, 0))
        for kernel in prediction.forecast.kernels
        for reason, steps in kernel.fallbacks.items()
    )
    return Table(columns=_REASON_COLUMNS, rows=rows)


def _class_tables(prediction: Prediction) -> Iterator[Table]:
    forecast = prediction.forecast
    if forecast.ascend_states:
        yield _counts_table("Ascend attention state", forecast.ascend_states)
        yield _counts_table("operator of one layer", forecast.ascend_calls, "calls")
    if set(forecast.graphs) - {"eager"}:
        padding = f"{forecast.padding_tokens:,} padding tokens"
        yield _counts_table(f"graphs ({padding})", forecast.graphs)


def _counts_table(title: str, counts: Mapping[str, int], unit: str = "steps") -> Table:
    return Table(columns=columns(f"name={title}", f"count={unit}"), rows=tuple(counts.items()))


def change_text(change: ExpectedChange) -> str:
    """The expected change, with its label."""
    return (
        f"PREDICTION, not a measurement: throughput end to end {change.low_pct:+.1f} % to"
        f" {change.high_pct:+.1f} % ({change.by_flops_pct:+.1f} % if attention time goes with FLOPs,"
        f" {change.by_bytes_pct:+.1f} % if it goes with bytes)"
    )


def prediction_record(prediction: Prediction) -> dict[str, Any]:
    """The answer as JSON data; docs/simulating.md describes it."""
    setup, config, played = prediction.setup, prediction.setup.scenario.config, prediction.played
    forecast, workload = prediction.forecast, prediction.workload
    change = prediction.change
    return {
        "schema_version": SCHEMA_VERSION,
        "server": {
            "architecture": setup.page.model.architecture,
            "profile": setup.profile.name,
            "page_tokens": setup.page.block_size_tokens,
            "cache_groups": [
                {"kind": group.kind, "block_size_tokens": group.block_size_tokens}
                for group in setup.scenario.groups
            ],
            "num_blocks": setup.scenario.num_blocks if setup.capacity else None,
            "vllm_version": config.vllm_version,
            "max_num_batched_tokens": config.max_num_batched_tokens,
            "max_num_seqs": config.max_num_seqs,
            "max_model_len": config.max_model_len,
            "prefix_caching": config.prefix_caching,
            "async_scheduling": config.async_scheduling,
            "attention_layers": setup.attention_layers,
        },
        "workload": {
            "title": workload.title,
            "requests": len(workload.items),
            "pacing": workload.pacing,
            "concurrency": workload.concurrency,
            "step_ms": None if prediction.duration is None else prediction.duration.step_ms,
            "token_ms": None if prediction.duration is None else prediction.duration.token_ms,
        },
        "steps": {
            "all": forecast.work.steps,
            "with_prompt_tokens": forecast.prefill_steps,
            "mixed": forecast.mixed_steps,
            "by_path": dict(forecast.paths),
            "by_ascend_state": dict(forecast.ascend_states),
            "ascend_calls_per_layer": dict(forecast.ascend_calls),
            "by_graph": dict(forecast.graphs),
        },
        "work": _work(forecast.work),
        "padding_tokens": forecast.padding_tokens,
        "preemptions": played.preemptions,
        "finished": played.finished,
        "stall": None if played.stall is None else played.stall.reason,
        "simulated_ms": played.simulated_ms,
        "kernels": [_kernel_record(kernel, forecast.work) for kernel in forecast.kernels],
        "prediction": None
        if change is None
        else {
            "what": "expected change of end-to-end throughput; a prediction, not a measurement",
            "low_pct": change.low_pct,
            "high_pct": change.high_pct,
            "by_flops_pct": change.by_flops_pct,
            "by_bytes_pct": change.by_bytes_pct,
        },
        "notes": list(prediction.notes),
    }


def _work(work: Work) -> dict[str, int]:
    return {"tokens": work.tokens, "attention_flops": work.flops, "attention_bytes": work.bytes}


def _kernel_record(kernel: KernelForecast, whole: Work) -> dict[str, Any]:
    return {
        "kernel": kernel.name,
        "made_for": kernel.phase,
        "hit_steps": kernel.hit_steps,
        "steps_made_for": kernel.eligible_steps,
        "hits_of_those": kernel.eligible_hits,
        "hit_rate": kernel.hit_rate,
        "tokens_share": work_share(kernel.work, whole, "tokens"),
        "attention_flops_share": work_share(kernel.work, whole, "flops"),
        "attention_bytes_share": work_share(kernel.work, whole, "bytes"),
        "work": _work(kernel.work),
        "fallbacks": dict(kernel.fallbacks),
        "fallbacks_of_those": dict(kernel.eligible_fallbacks),
    }
