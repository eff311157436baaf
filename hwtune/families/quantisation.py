"""The KV-cache dtype that a quantised checkpoint declares, so that ``auto`` becomes it.

Sources: vLLM utils/torch_utils.py get_kv_cache_quant_algo_string and
transformers_utils/model_arch_config_convertor.py _normalize_quantization_config (ModelOpt);
model_executor/layers/attention/attention.py Attention (compressed-tensors).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hwtune.domain.model import CheckpointKv, QuantisedDtypes
from hwtune.families.reader import ConfigReader

_KEYS = ("quantization_config", "compression_config")
_MODELOPT_METHODS = {
    "FP8": "modelopt",
    "FP8_PER_CHANNEL_PER_TOKEN": "modelopt",
    "FP8_PB_WO": "modelopt",
    "NVFP4": "modelopt_fp4",
}
"""ModelOpt's quant_algo -> the method vLLM takes it for, where the file names none."""
_RUNS_IN = {
    "fp8": ("bfloat16", "float16"),
    "modelopt": ("bfloat16", "float16"),
    "modelopt_fp4": ("bfloat16", "float16", "float8_e4m3fn"),
    "mxfp4": ("bfloat16",),
}
"""Method -> dtypes (get_supported_act_dtypes, 0.32), for those that take not all of them."""
_MODELOPT_DTYPES = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}


def checkpoint_kv(reader: ConfigReader) -> CheckpointKv | None:
    """What the checkpoint's quantisation says of the KV cache; None: nothing."""
    own = reader.root.get(_KEYS[0])
    if isinstance(own, Mapping) and _method(own).startswith("modelopt"):
        dtype = _modelopt_dtype(own)
        return CheckpointKv(dtype=dtype) if dtype else None
    return next(filter(None, map(_compressed_tensors, _configs(reader))), None)


def quantised_dtypes(reader: ConfigReader, architecture: str) -> QuantisedDtypes | None:
    """The dtypes the checkpoint's quantisation runs in; None: all, or not known."""
    config = next(_configs(reader), None)
    if config is None:
        return None
    method = _method(config)
    if architecture.startswith("KimiK3") and config.get("format") == "mxfp4-pack-quantized":
        method = "mxfp4"  # models/config.py KimiK3ForConditionalGenerationConfig
    dtypes = _RUNS_IN.get(method)
    return QuantisedDtypes(method=method, dtypes=dtypes) if dtypes else None


def _configs(reader: ConfigReader) -> Iterator[Mapping[str, Any]]:
    for part in (reader.root, reader.text):
        for key in _KEYS:
            value = part.get(key)
            if isinstance(value, Mapping):
                yield value


def _method(config: Mapping[str, Any]) -> str:
    """The quantisation method; older ModelOpt checkpoints name only their producer."""
    producer, inner = config.get("producer"), config.get("quantization")
    by_modelopt = isinstance(producer, Mapping) and producer.get("name") == "modelopt"
    if by_modelopt and isinstance(inner, Mapping):
        found = _MODELOPT_METHODS.get(str(inner.get("quant_algo")).upper())
        if found is not None:
            return found
    method = config.get("quant_method")
    return method.lower().replace("_tensors", "-tensors") if isinstance(method, str) else ""


def _modelopt_dtype(config: Mapping[str, Any]) -> str | None:
    inner = config.get("quantization")
    parts = [inner, config] if isinstance(inner, Mapping) else [config]
    keys = ("kv_cache_scheme", "kv_cache_quant_algo")
    value = next((part[key] for key in keys for part in parts if part.get(key)), None)
    if isinstance(value, Mapping):
        if value.get("num_bits") == 8 and value.get("dynamic") is not False:
            return None
        value = {8: "fp8", 4: "nvfp4"}.get(_float_bits(value))
    return _MODELOPT_DTYPES.get(value.lower()) if isinstance(value, str) else None


def _compressed_tensors(config: Mapping[str, Any]) -> CheckpointKv | None:
    scheme = config.get("kv_cache_scheme")
    if _method(config) != "compressed-tensors" or not isinstance(scheme, Mapping):
        return None
    return CheckpointKv(dtype="fp8", by_layers=True) if _float_bits(scheme) == 8 else None


def _float_bits(scheme: Mapping[str, Any]) -> int:
    bits = scheme.get("num_bits")
    return bits if scheme.get("type") == "float" and type(bits) is int else 0
