"""JSON -> scenarios of the scheduler, one per line, in the form of recorded runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, get_args

from hwtune.domain.errors import InputError
from hwtune.domain.scheduler.values import (
    NEWEST_VERSION,
    CacheGroup,
    GroupKind,
    MambaMode,
    Policy,
    Request,
    Scenario,
    SchedulerConfig,
    Speculation,
)
from hwtune.io.typed import number

_ANSWERS = (
    *("status", "reason", "num_steps", "steps", "build_ms", "run_ms", "schedule_ms"),
    *("scheduler_block_size", "hash_block_size", "num_lookahead_tokens"),
)
"""Keys of a recorded run that are results."""
_TOP = ("name", "tags", "note", "vllm", "config", "kv", "requests", *_ANSWERS)
_CONFIG = {
    "max_num_batched_tokens": int,
    "max_num_seqs": int,
    "max_model_len": int,
    "max_num_scheduled_tokens": int,
    "max_num_active_seqs": int,
    "chunked_prefill": bool,
    "long_prefill_token_threshold": int,
    "long_prefill_adaptive": bool,
    "policy": Policy,
    "reserve_full_isl": bool,
    "watermark": float,
    "prefix_caching": bool,
}
"""Keys of ``config`` that are fields of the same name."""
_NAMES = {
    "async": "async_scheduling",
    "enable_chunked_prefill": "chunked_prefill",
    "enable_prefix_caching": "prefix_caching",
    "scheduler_reserve_full_isl": "reserve_full_isl",
    "long_prefill_token_threshold_adaptive": "long_prefill_adaptive",
    "prefix_cache_retention_interval": "retention",
    "retention_interval": "retention",
    "mamba_retention": "retention",
}
"""Other names of keys: vLLM's own, and short ones."""
_GROUPS: dict[str, GroupKind] = {
    "full": "full",
    "full_attention": "full",
    "mla": "full",
    "sliding_window": "sliding_window",
    "swa": "sliding_window",
    "mamba": "mamba",
}
_NOT_MODELLED = {
    "pipeline_parallel_size": "the cadence of pipeline stages",
    "decode_context_parallel_size": "context parallelism",
    "prefill_context_parallel_size": "context parallelism",
    "kv_transfer_config": "KV connectors",
    "kv_connector": "KV connectors",
    "ec_transfer_config": "encoder connectors",
    "scheduler_cls": "schedulers that are not vLLM's own",
    "max_num_encoder_input_tokens": "encoder inputs",
    "encoder_cache_size": "encoder inputs",
    "mm_features": "encoder inputs",
    "multimodal": "encoder inputs",
    "disable_chunked_mm_input": "encoder inputs",
    "prefill_schedule_interval": "throttled prefills of data-parallel engines",
    "max_loras": "LoRA limits",
    "lora": "LoRA limits",
    "structured_output": "grammars that are still compiled",
    "num_speculative_tokens_per_batch_size": "draft lengths that follow the batch size",
    "enable_mamba_shared_prefix_checkpoint": "checkpoints of shared prefixes inside a block",
    "parallel_drafting": "parallel drafting",
}
"""Known to vLLM and not played here -> what it is."""
_NEUTRAL: dict[str, tuple[object, ...]] = dict.fromkeys(
    (
        "pipeline_parallel_size",
        "decode_context_parallel_size",
        "prefill_context_parallel_size",
        "prefill_schedule_interval",
    ),
    (None, 1),
)
"""Values with which they change nothing, where that is not None, False or 0."""
_NO_DEFAULT = ("max_num_batched_tokens", "max_num_seqs", "max_model_len")
_LARGEST_TOKENS = 2**31


def read_scenario(record: Mapping[str, Any], version: str | None = None) -> Scenario:
    """A scenario from one JSON object.

    Args:
        version: vLLM's, when the record does not name one.

    Raises:
        InputError: a key is unknown, missing, not modelled or of the wrong type; names it.
    """
    _known(record, _TOP, "")
    _finite(record)
    kv = _object(record, "kv")
    _known(kv, ("num_blocks", "groups", "prefix_match_unit", "retention"), "kv.")
    config = _config(_object(record, "config"), kv, record.get("vllm") or version)
    return Scenario(
        name=_text(record.get("name", ""), "name"),
        config=config,
        num_blocks=_count(kv, "num_blocks", "kv."),
        groups=tuple(_each(kv, "groups", "kv.", _group)),
        prefix_match_tokens=_optional(kv, "prefix_match_unit", "kv."),
        requests=tuple(_each(record, "requests", "", _request)),
    )


def _config(given: Mapping[str, Any], kv: Mapping[str, Any], version: object) -> SchedulerConfig:
    named = {_NAMES.get(key, key): value for key, value in given.items()}
    known = (*_CONFIG, *_NAMES.values(), "spec", "async_scheduling", "retention")
    _known(named, known, "config.")
    for name in _NO_DEFAULT:
        _count(named, name, "config.")
    values: dict[str, Any] = {
        name: _typed(named[name], kind, f"config.{name}")
        for name, kind in {**_CONFIG, "async_scheduling": bool}.items()
        if named.get(name) is not None
    }
    retention = kv.get("retention", named.get("retention", 0))
    return SchedulerConfig(
        vllm_version=_text(version or NEWEST_VERSION, "vllm"),
        retention_tokens=None if retention is None else _typed(retention, int, "retention"),
        speculation=_speculation(named.get("spec")),
        **values,
    )


def _speculation(given: object) -> Speculation | None:
    if given is None:
        return None
    spec = _mapping(given, "config.spec")
    _known(spec, ("k", "method", "accept", "draft_lens"), "config.spec.")
    lengths = spec.get("draft_lens")
    return Speculation(
        num_tokens=_count(spec, "k", "config.spec."),
        method=_text(spec.get("method", "ngram"), "config.spec.method"),
        accepted=_counts(spec.get("accept", [0]), "config.spec.accept"),
        drafted=None if lengths is None else _counts(lengths, "config.spec.draft_lens"),
    )


def _group(given: Mapping[str, Any], where: str) -> CacheGroup:
    _known(given, ("type", "block_size", "window", "sliding_window", "mode"), where)
    name = _text(given.get("type", "full"), f"{where}type")
    if name not in _GROUPS:
        message = f"{where}type {name!r} is not modelled; modelled: {', '.join(_GROUPS)}"
        raise InputError(message)
    kind = _GROUPS[name]
    window = _optional(given, "window", where) or _optional(given, "sliding_window", where)
    mode = given.get("mode")
    return CacheGroup(
        kind=kind,
        block_size_tokens=_count(given, "block_size", where),
        window_tokens=window,
        mode=_typed(mode or "none", MambaMode, f"{where}mode") if kind == "mamba" else None,
    )


def _request(given: Mapping[str, Any], where: str) -> Request:
    names = ("arrival_step", "prompt_len", "output_len", "priority", "prefix_id", "prefix_len")
    _known(given, ("id", *names), where)
    prefix = given.get("prefix_id")
    return Request(
        id=_text(given.get("id"), f"{where}id"),
        prompt_len=_count(given, "prompt_len", where),
        output_len=_count(given, "output_len", where),
        arrival_step=_optional(given, "arrival_step", where) or 0,
        priority=_typed(given.get("priority") or 0, int, f"{where}priority"),
        prefix_id=None if prefix is None else str(prefix),
        prefix_len=_optional(given, "prefix_len", where) or 0,
    )


def _each(
    given: Mapping[str, Any], key: str, where: str, read: Callable[[Mapping[str, Any], str], Any]
) -> list[Any]:
    items = given.get(key)
    if not isinstance(items, list):
        message = f"{where}{key}: expected a list"
        raise InputError(message)
    names = [f"{where}{key}[{index}]" for index in range(len(items))]
    return [read(_mapping(item, name), f"{name}.") for item, name in zip(items, names, strict=True)]


def _known(given: Mapping[str, Any], names: Collection[str], where: str) -> None:
    for key in given:
        if key in names:
            continue
        if key in _NOT_MODELLED:
            if given[key] in _NEUTRAL.get(key, (None, False, 0)):
                continue
            message = f"{where}{key}: {_NOT_MODELLED[key]} are not modelled"
            raise InputError(message)
        message = f"unknown key {where}{key[:60]}; known: {', '.join(dict.fromkeys(names))}"
        raise InputError(message)


def _finite(record: Mapping[str, Any]) -> None:
    """The answer repeats what was given, and JSON has no NaN."""
    for key in record:
        if key in _ANSWERS:
            continue
        try:
            json.dumps(record[key], allow_nan=False)
        except ValueError:
            message = f"{key}: NaN and infinity are no numbers here"
            raise InputError(message) from None


def _object(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    if key not in record:
        message = f"no {key}: a scenario has config, kv and requests"
        raise InputError(message)
    return _mapping(record[key], key)


def _mapping(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        message = f"{name}: expected an object, not {type(value).__name__}"
        raise InputError(message)
    return value


def _count(given: Mapping[str, Any], key: str, where: str) -> int:
    if given.get(key) is None:
        message = f"no {where}{key}"
        raise InputError(message)
    return int(_typed(given[key], int, f"{where}{key}"))


def _optional(given: Mapping[str, Any], key: str, where: str) -> int | None:
    return None if given.get(key) is None else _count(given, key, where)


def _counts(value: object, name: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        message = f"{name}: expected a list of whole numbers"
        raise InputError(message)
    return tuple([_typed(item, int, name) for item in value])


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        message = f"{name}: expected text, not {value!r}"[:200]
        raise InputError(message)
    return value


def _typed(value: Any, kind: Any, name: str) -> Any:  # noqa: ANN401 - as asked for
    if kind is float:
        try:
            return number(value, name)
        except TypeError as error:
            raise InputError(str(error)) from None
    if kind in (int, bool):
        if type(value) is kind and (kind is bool or abs(value) <= _LARGEST_TOKENS):
            return value
        wanted = "a whole number" if kind is int else "true or false"
        message = f"{name}: expected {wanted}, not {value!r}"[:200]
        raise InputError(message)
    choices = get_args(kind)
    if value not in choices:
        message = f"{name}: {value!r} is not modelled; modelled: {', '.join(choices)}"[:200]
        raise InputError(message)
    return value
