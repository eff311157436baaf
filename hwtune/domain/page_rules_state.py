"""Bytes of one recurrent layer's state on one rank."""

from __future__ import annotations

from hwtune.domain.deployment import Deployment
from hwtune.domain.errors import InputError
from hwtune.domain.model import ITEM_BYTES, ModelShape, RecurrentShape, StateRequest, StateTensor
from hwtune.domain.page_rules_attention import kv_dtype, model_dtype
from hwtune.domain.page_rules_versions import (
    CPU_FLOAT32_STATE,
    KDA_DTYPE_CHECK,
    NEWEST,
    STATE_IN_KV_DTYPE,
    Rule,
    Version,
)
from hwtune.domain.page_steps import EngineRefusalError, Trace

_MAMBA_DTYPES = ("auto", "float32", "float16", "bfloat16")
_SOURCE = "model_executor/layers/mamba/mamba_utils.py MambaStateShapeCalculator"
_BY_AVX512_BF16: Version = (0, 29, 0)


def state_version(model: ModelShape, deployment: Deployment, rule: Rule) -> Version:
    """The release whose state shapes and dtypes apply: never before the model's first."""
    if deployment.state_dtypes_of == "newest" or deployment.engine != "vllm":
        return NEWEST
    return max(rule.version, model.first_version or rule.version)


def ssm_dtype_default(recurrent: RecurrentShape, version: Version) -> str | None:
    """The SSM state's dtype when nobody asks for one; None: the conv state's."""
    found = None
    for since, dtype in recurrent.ssm_dtype_defaults:
        if since <= version:
            found = dtype
    return found


def state_request(
    model: ModelShape, recurrent: RecurrentShape, deployment: Deployment, rule: Rule
) -> StateRequest:
    """The deployment as the state's shapes see it.

    Raises:
        InputError: a dtype is unknown.
        EngineRefusalError: the family does not take the asked SSM dtype.
    """
    running = model_dtype(model, deployment)
    version = state_version(model, deployment, rule)
    conv = _mamba_dtype("--mamba-cache-dtype", deployment.mamba_cache_dtype) or running
    named = _named_ssm_dtype(recurrent, deployment, rule, version)
    reset = _reset_on_cpu(recurrent, deployment, rule, named)
    return StateRequest(
        tensor_parallel_size=deployment.tensor_parallel_size,
        num_speculative_tokens=deployment.num_speculative_tokens,
        model_dtype=running,
        conv_dtype=conv,
        ssm_dtype="float32" if reset else named or conv,
        version=version,
        use_replayssm=deployment.use_replayssm,
        replayssm_buffer_len=deployment.replayssm_buffer_len,
    )


def _named_ssm_dtype(
    recurrent: RecurrentShape, deployment: Deployment, rule: Rule, version: Version
) -> str | None:
    """The dtype that the user or the model's class names for the SSM state; None: neither does."""
    asked = _mamba_dtype("--mamba-ssm-cache-dtype", deployment.mamba_ssm_cache_dtype)
    _check_ssm_dtype(recurrent, asked, rule)
    if version < recurrent.ssm_dtype_since:
        asked = None
    return asked or ssm_dtype_default(recurrent, version)


def _reset_on_cpu(
    recurrent: RecurrentShape, deployment: Deployment, rule: Rule, named: str | None
) -> bool:
    """Whether vLLM's CPU platform makes the SSM state float32, whatever the model asks for.

    Source: platforms/cpu.py CpuPlatform.check_and_update_config, which looks at the processor.
    """
    if deployment.platform != "cpu" or not CPU_FLOAT32_STATE.holds(rule.version):
        return False
    if rule.version < _BY_AVX512_BF16:
        return named != "float32" and "amx_tile" in deployment.cpu_features
    kept = recurrent.kind == "gdn" and named in ("float16", "bfloat16")
    reset = named != "float32" and not kept
    return reset and "avx512_bf16" in deployment.cpu_features


def _mamba_dtype(flag: str, value: str) -> str | None:
    if value not in _MAMBA_DTYPES:
        message = f"{flag} {value}: expected one of {', '.join(_MAMBA_DTYPES)}"
        raise InputError(message)
    return None if value == "auto" else value


def _check_ssm_dtype(recurrent: RecurrentShape, asked: str | None, rule: Rule) -> None:
    allowed = recurrent.allowed_ssm_dtypes
    if asked and allowed and asked not in allowed and KDA_DTYPE_CHECK.holds(rule.version):
        message = f"KDA recurrent state supports only auto, {', and '.join(allowed)}; got {asked}"
        raise EngineRefusalError(message, error_class="ValueError")


def state_tensors(
    model: ModelShape, recurrent: RecurrentShape, deployment: Deployment, rule: Rule
) -> tuple[StateTensor, ...]:
    """The state of one recurrent layer on one rank."""
    return recurrent.state_tensors(state_request(model, recurrent, deployment, rule))


def state_bytes(
    model: ModelShape,
    recurrent: RecurrentShape,
    deployment: Deployment,
    rule: Rule,
    trace: Trace,
) -> tuple[int, tuple[StateTensor, ...]]:
    """(bytes of the state, its tensors); before 0.10.1 every tensor counts in the KV dtype."""
    tensors = state_tensors(model, recurrent, deployment, rule)
    forced = None
    if STATE_IN_KV_DTYPE.holds(rule.version):
        forced = kv_dtype(model, deployment, rule)
        trace.note(f"this release counts every state tensor in the KV-cache dtype ({forced})")
    named = _named_ssm_dtype(recurrent, deployment, rule, state_version(model, deployment, rule))
    if _reset_on_cpu(recurrent, deployment, rule, named):
        trace.note("vLLM keeps the SSM state in float32 on this processor")
    source = rule.source_of(_SOURCE)
    total = 0
    for tensor in tensors:
        dtype = forced or tensor.dtype
        size = tensor.elements * ITEM_BYTES.get(dtype, 1)
        shape = " x ".join(map(str, tensor.shape))
        name = f"{tensor.kind} state"
        inputs: dict[str, str | int | float] = {"shape": shape, "dtype": dtype}
        total += trace.add(name, f"{tensor.formula}, x bytes", inputs, size, "B", source)
    trace.add("state bytes", "sum of the state tensors", {}, total, "B", source)
    return total, tensors
