"""vLLM's own scheduler and graph flags, and its defaults where the user gives none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from hwtune.domain.deployment import Deployment
from hwtune.domain.errors import UsageError
from hwtune.domain.json_text import parse_json
from hwtune.domain.planning import flag_value
from hwtune.domain.scheduler.graphs import GraphMode
from hwtune.domain.scheduler.values import Policy

GIB: Final = 2**30

_ASYNC_METHODS: Final = (
    *("eagle", "eagle3", "extract_hidden_states", "ngram_gpu"),
    *("draft_model", "dspark", "dflash"),
)
"""Speculative methods that keep async scheduling (0.32 config/vllm.py)."""

_FOREIGN: Final = {
    "--scheduler-cls": "another scheduler class",
    "--kv-transfer-config": "KV transfer between servers",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """max_num_batched_tokens and max_num_seqs, and where they come from."""

    tokens: int
    sequences: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerFlags:
    """What the command line says about scheduling; None: nothing."""

    chunked_prefill: bool
    async_scheduling: bool | None
    policy: Policy
    long_prefill_token_threshold: int
    long_prefill_adaptive: bool
    reserve_full_isl: bool
    watermark: float
    max_num_active_seqs: int | None
    eager: bool
    graph_mode: GraphMode | None
    capture_sizes: tuple[int, ...] | None
    paged_sizes: tuple[int, ...]
    """pa_shape_list of vllm-ascend's additional_config."""


def default_budgets(
    deployment: Deployment, device_memory_bytes: int | None, max_model_len: int, chunked: bool
) -> Budgets:
    """The budgets of an API server.

    Source: vLLM 0.32 engine/arg_utils.py get_batch_defaults and
    _set_default_max_num_seqs_and_batched_tokens_args; the tier of 160 GiB is new in 0.32.
    """
    ranks = deployment.tensor_parallel_size * deployment.pipeline_parallel_size
    memory = device_memory_bytes or 0
    if deployment.platform == "cpu":
        tokens, sequences, source = 2048 * ranks, 128 * ranks, "vLLM's default on a CPU"
    elif deployment.platform == "npu" or memory < 70 * GIB:
        tokens, sequences, source = 2048, 256, "vLLM's default below 70 GiB, or of unknown memory"
    else:
        large = memory >= 160 * GIB
        tokens, sequences = (16384 if large else 8192), 1024
        source = f"vLLM's default from {160 if large else 70} GiB on"
    given = deployment.max_num_batched_tokens
    wanted = deployment.max_num_seqs or sequences
    if given is None:
        tokens = tokens if chunked else max(tokens, max_model_len)
        tokens = min(tokens, wanted * max_model_len)
    else:
        tokens, source = given, "given"
    if deployment.max_num_seqs is None:
        wanted = min(wanted, tokens)
    return Budgets(tokens=tokens, sequences=wanted, source=source)


def scheduler_flags(flags: Sequence[str]) -> SchedulerFlags:
    """The scheduling part of a vLLM command line.

    Raises:
        UsageError: a value is wrong, or the flag asks for something that is not modelled.
    """
    _refuse_foreign(flags)
    compilation = _json(flags, "--compilation-config") or {}
    return SchedulerFlags(
        chunked_prefill=_switch(flags, "enable-chunked-prefill", default=True),
        async_scheduling=_maybe_switch(flags, "async-scheduling"),
        policy=_policy(flag_value(flags, "--scheduling-policy")),
        long_prefill_token_threshold=_whole(flags, "--long-prefill-token-threshold") or 0,
        long_prefill_adaptive=_switch(flags, "long-prefill-token-threshold-adaptive", False),
        reserve_full_isl=_switch(flags, "scheduler-reserve-full-isl", default=True),
        watermark=_share(flag_value(flags, "--watermark")),
        max_num_active_seqs=_whole(flags, "--max-num-active-seqs"),
        eager=_switch(flags, "enforce-eager", default=False),
        graph_mode=_graph_mode(compilation.get("cudagraph_mode")),
        capture_sizes=_capture_sizes(flags, compilation.get("cudagraph_capture_sizes")),
        paged_sizes=_sizes((_json(flags, "--additional-config") or {}).get("pa_shape_list")),
    )


def resolved_async(flags: SchedulerFlags, deployment: Deployment, version: tuple[int, ...]) -> bool:
    """Whether scheduling runs ahead of results: on by default since 0.14, except with drafters
    that cannot follow."""
    if flags.async_scheduling is not None:
        return flags.async_scheduling
    if version < (0, 14) or deployment.pipeline_parallel_size > 1:
        return False
    method = deployment.speculative_method or ""
    follows = method in _ASYNC_METHODS or method.endswith("mtp")
    return follows or not deployment.num_speculative_tokens


def _refuse_foreign(flags: Sequence[str]) -> None:
    for name, what in _FOREIGN.items():
        if flag_value(flags, name) is not None:
            message = f"{name}: {what} is not modelled; leave it out or measure instead"
            raise UsageError(message)
    extra = _json(flags, "--additional-config") or {}
    if "scheduler_config" in extra:
        message = (
            "--additional-config: scheduler_config names a scheduler of vllm-ascend, which is not"
            " modelled; leave it out or measure instead"
        )
        raise UsageError(message)


def _json(flags: Sequence[str], name: str) -> dict[str, Any] | None:
    text = flag_value(flags, name)
    if text is None:
        return None
    try:
        data = parse_json(text)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        message = f"{name}: expected a JSON object, not {text[:60]}"
        raise UsageError(message)
    return data


def _maybe_switch(flags: Sequence[str], name: str) -> bool | None:
    found = None
    for flag in flags:
        plain = flag.partition("=")[0].replace("_", "-")
        if plain in (f"--{name}", f"--no-{name}"):
            found = plain == f"--{name}"
    return found


def _switch(flags: Sequence[str], name: str, default: bool) -> bool:
    found = _maybe_switch(flags, name)
    return default if found is None else found


def _policy(text: str | None) -> Policy:
    if text in (None, "fcfs"):
        return "fcfs"
    if text == "priority":
        return "priority"
    message = f"--scheduling-policy {text}: expected fcfs or priority"
    raise UsageError(message)


def _whole(flags: Sequence[str], name: str) -> int | None:
    text = flag_value(flags, name)
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        message = f"{name} {text[:40]}: expected a whole number"
        raise UsageError(message)
    return value


def _share(text: str | None) -> float:
    try:
        value = float(text or 0.0)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        message = f"--watermark {text}: expected a share from 0 up to below 1"
        raise UsageError(message)
    return value


def _graph_mode(value: object) -> GraphMode | None:
    if value is None:
        return None
    name = str(value).upper()
    for mode in get_args(GraphMode):
        if name == mode:
            found: GraphMode = mode
            return found
    message = f"--compilation-config: cudagraph_mode {value!r} is none of {', '.join(get_args(GraphMode))}"
    raise UsageError(message)


def _sizes(configured: object) -> tuple[int, ...]:
    if not isinstance(configured, list):
        return ()
    return tuple(sorted({size for size in configured if type(size) is int and size > 0}))


def _capture_sizes(flags: Sequence[str], configured: object) -> tuple[int, ...] | None:
    given = _sizes(configured)
    if given:
        return given
    sizes: list[int] = []
    for at, flag in enumerate(flags):
        if flag.replace("_", "-") == "--cudagraph-capture-sizes":
            for text in flags[at + 1 :]:
                if not text.isdecimal():
                    break
                sizes.append(int(text))
    return tuple(sorted(set(sizes))) or None
