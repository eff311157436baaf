"""One case of a batch: knobs in, the page or the engine's refusal out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from hwtune.domain.deployment import Deployment
from hwtune.domain.errors import HwtuneError, InputError
from hwtune.domain.model import ModelShape
from hwtune.domain.page import EngineRefusalError, PageDerivation, derive_page
from hwtune.domain.page_rules_backends import BackendSizes, backend_sizes
from hwtune.domain.page_rules_versions import select_rule
from hwtune.domain.units import LARGEST_SIZE

_PREFIX_CACHING: dict[object, tuple[bool | None, str | None]] = {
    None: (None, None),
    "default": (None, None),
    "on": (True, None),
    "off": (False, None),
    "none": (True, "none"),
    "align": (True, "align"),
    "all": (True, "all"),
    "off+align": (False, "align"),
}
"""Knob -> (enable_prefix_caching, mamba_cache_mode)."""
_FIELDS = {
    "tp": ("tensor_parallel_size", int),
    "pp": ("pipeline_parallel_size", int),
    "kv_cache_dtype": ("kv_cache_dtype", str),
    "mamba_cache_dtype": ("mamba_cache_dtype", str),
    "mamba_ssm_cache_dtype": ("mamba_ssm_cache_dtype", str),
    "dtype": ("dtype", str),
    "platform": ("platform", str),
    "engine": ("engine", str),
    "block_size": ("block_size", int),
    "mamba_block_size": ("mamba_block_size", int),
    "mamba_cache_mode": ("mamba_cache_mode", str),
    "max_model_len": ("max_model_len", int),
    "spec": ("num_speculative_tokens", int),
    "use_replayssm": ("use_replayssm", bool),
    "replayssm_buffer_len": ("replayssm_buffer_len", int),
    "sm100": ("blackwell_sm10x", bool),
    "ascend_310p": ("ascend_310p", bool),
    "ckpt": ("prefill_checkpoint_tokens", int),
    "attention_backend": ("attention_backend", str),
}
_OTHER = ("prefix_caching", "alignment", "backends", "spec_method", "kv_cache_dtype_skip_layers")
_FROM_ZERO = ("spec", "ckpt", "replayssm_buffer_len")
_CHOICES = {
    "platform": ("cuda", "rocm", "cpu", "xpu", "npu"),
    "engine": ("vllm", "vllm-ascend"),
}


def batch_record(
    case: Mapping[str, Any],
    default_version: str | None,
    load: Callable[[str], ModelShape],
) -> dict[str, Any]:
    """The answer to one case: the page's fields, or ``error`` with class and message.

    The state's dtypes follow the newest release whatever the version, because a batch asks what
    each release's rule makes of today's model classes; give the knob ``mamba_ssm_cache_dtype`` to
    ask for an older release's default.
    """
    identity = case.get("id")
    if not _printable(identity):
        return error_record(None, InputError("'id' must be JSON that can be printed, without NaN"))
    try:
        page = _derive(case, default_version, load)
    except EngineRefusalError as error:
        return {"id": identity, "error": {"class": error.error_class, "message": error.text}}
    except HwtuneError as error:
        return error_record(identity, error)
    return {"id": identity, **_fields(page)}


def error_record(identity: object, error: HwtuneError) -> dict[str, Any]:
    """The record of a case that hwtune itself cannot answer."""
    return {"id": identity, "error": {"class": type(error).__name__, "message": str(error)}}


def located(record: dict[str, Any], line: int) -> dict[str, Any]:
    """An error with the number of its line behind the id; an answer as it is."""
    if "error" not in record:
        return record
    return {"id": record["id"], "line": line, "error": record["error"]}


def _printable(identity: object) -> bool:
    try:
        json.dumps(identity, allow_nan=False)
    except (ValueError, RecursionError):
        return False
    return True


def _derive(
    case: Mapping[str, Any], default_version: str | None, load: Callable[[str], ModelShape]
) -> PageDerivation:
    knobs = case.get("knobs") or {}
    reference = case.get("model")
    if not isinstance(knobs, Mapping) or not isinstance(reference, str):
        message = "a case needs 'model' (a path) and 'knobs' (an object)"
        raise InputError(message)
    version = case.get("version") or case.get("vllm") or default_version
    if version is not None and not isinstance(version, str):
        message = f"'version' must be a string, not {version!r}"
        raise InputError(message)
    deployment = deployment_from_knobs(knobs, version)
    backends = _backends(knobs, deployment)
    alignment = _typed("alignment", knobs.get("alignment"), int) if backends is None else None
    return derive_page(load(reference), deployment, alignment_tokens=alignment, backends=backends)


def deployment_from_knobs(knobs: Mapping[str, Any], version: str | None) -> Deployment:
    """The deployment that a case's knobs describe.

    Raises:
        InputError: a knob is unknown or has a wrong value.
    """
    values: dict[str, Any] = {"version": version, "state_dtypes_of": "newest"}
    for name, value in knobs.items():
        if name in _FIELDS:
            field, kind = _FIELDS[name]
            if value is not None:
                values[field] = _typed(name, value, kind)
        elif name not in _OTHER:
            message = f"unknown knob {name!r}; known: {', '.join([*_FIELDS, *_OTHER])}"
            raise InputError(message)
    values |= _prefix_caching(knobs.get("prefix_caching"), values.get("mamba_cache_mode"))
    layers = knobs.get("kv_cache_dtype_skip_layers") or ()
    if not isinstance(layers, (list, tuple)):
        message = f"knob 'kv_cache_dtype_skip_layers' must be a list, not {layers!r}"
        raise InputError(message)
    values["kv_cache_dtype_skip_layers"] = tuple(map(str, layers))
    return Deployment(**values)


def _typed(name: str, value: object, kind: type) -> Any:  # noqa: ANN401 - the kind asked for
    if value is None:
        return None
    wrong_bool = isinstance(value, bool) and kind is not bool
    if wrong_bool or not isinstance(value, kind):
        message = f"knob {name!r} must be of type {kind.__name__}, not {value!r}"
        raise InputError(message)
    minimum = 0 if name in _FROM_ZERO else 1
    if isinstance(value, int) and kind is int and not minimum <= value <= LARGEST_SIZE:
        message = f"knob {name!r} must be from {minimum} to {LARGEST_SIZE} (2**31)"
        raise InputError(message)
    choices = _CHOICES.get(name)
    if choices and value not in choices:
        message = f"knob {name!r} must be one of {', '.join(choices)}, not {value!r}"
        raise InputError(message)
    return value


def _prefix_caching(value: object, mode: str | None) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"enable_prefix_caching": value}
    if not isinstance(value, (str, type(None))) or value not in _PREFIX_CACHING:
        known = ", ".join(str(key) for key in _PREFIX_CACHING if key)
        message = f"knob 'prefix_caching' must be one of {known}, not {value!r}"
        raise InputError(message)
    caching, named = _PREFIX_CACHING[value]
    return {"enable_prefix_caching": caching, "mamba_cache_mode": mode or named}


def _backends(knobs: Mapping[str, Any], deployment: Deployment) -> tuple[BackendSizes, ...] | None:
    """The backends a case names; None when it leaves them out."""
    names = knobs.get("backends")
    if names is None and knobs.get("alignment") is not None:
        return None
    if names is None:
        names = ["CPU_ATTN" if deployment.platform == "cpu" else "TRITON_ATTN"]
    if isinstance(names, str):
        names = [names]
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        message = f"knob 'backends' must be a list of names, not {names!r}"
        raise InputError(message)
    version = select_rule(deployment.engine, deployment.version).version
    return tuple(backend_sizes(name, version) for name in names)


def _fields(page: PageDerivation) -> dict[str, Any]:
    pct = page.padding_pct
    if pct is None and page.rule_ran:
        pct = 0.0
    return {
        "block_size": page.block_size_tokens,
        "mamba_block_size": page.mamba_block_size,
        "mamba_page_size_padded": page.mamba_page_padded_bytes,
        "mamba_page_bytes": page.state_bytes if page.hybrid else page.unused_state_bytes,
        "attn_bytes_per_token": page.attention_bytes_per_token if page.rule_ran else None,
        "mamba_cache_mode": page.mamba_cache_mode,
        "padding_pct": None if pct is None else round(pct, 6),
        "skip_page_size_padded": page.skip_page_padded_bytes,
    }
