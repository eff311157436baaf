"""From model and deployment to the page: which rule runs, and what it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hwtune.domain.deployment import Deployment
from hwtune.domain.errors import InputError
from hwtune.domain.model import ModelShape, RecurrentShape, StateTensor
from hwtune.domain.page_rules_ascend import ascend_padding_pct, ascend_page, old_alignment
from hwtune.domain.page_rules_attention import (
    bytes_per_token,
    check_heads,
    check_quantised_dtype,
    check_turboquant,
)
from hwtune.domain.page_rules_backends import BackendSizes, multiples_of
from hwtune.domain.page_rules_common import PageOutcome, RuleInputs
from hwtune.domain.page_rules_config import config_page
from hwtune.domain.page_rules_mode import (
    check_mamba_block_size,
    check_mode,
    check_replayssm,
    refuse_mamba_block_size,
    resolve_mode,
)
from hwtune.domain.page_rules_plain import is_hybrid, plain_page
from hwtune.domain.page_rules_platform import platform_page, untouched_page
from hwtune.domain.page_rules_state import state_bytes
from hwtune.domain.page_rules_versions import (
    CPU_MLA_WITHOUT_CACHING,
    RULE_IN_PLATFORM,
    Rule,
    select_rule,
    version_text,
)
from hwtune.domain.page_steps import EngineRefusalError, PageDerivation, Trace


def derive_page(
    model: ModelShape,
    deployment: Deployment,
    *,
    alignment_tokens: int | None = None,
    backends: Sequence[BackendSizes] | None = None,
) -> PageDerivation:
    """The page that the engine resolves for a model and a deployment, with its steps.

    Args:
        alignment_tokens: granularity in tokens that the attention backend declares. With
            ``backends`` given it may be None, and the backends decide as they do in vLLM.
        backends: what the attention backends of the model declare, first layer first; empty for
            a model whose layers are all recurrent.

    Raises:
        InputError: a value is unknown or missing.
        EngineRefusalError: the engine would refuse the combination.
    """
    _check_numbers(deployment, alignment_tokens)
    rule = select_rule(deployment.engine, deployment.version)
    trace = Trace(notes=list(rule.notes))
    model = _as_known_to(model, rule, trace)
    check_mode(deployment, rule)
    _check_deployment(model, deployment, rule)
    recurrent = model.recurrent
    given = None if backends is None else tuple(backends)
    if recurrent is None or not is_hybrid(model, rule):
        return plain_page(model, deployment, rule, alignment_tokens, given, trace)
    return _hybrid(model, recurrent, deployment, rule, alignment_tokens, given, trace)


def _check_numbers(deployment: Deployment, alignment_tokens: int | None) -> None:
    positive = {
        "--tensor-parallel-size": deployment.tensor_parallel_size,
        "--pipeline-parallel-size": deployment.pipeline_parallel_size,
        "--block-size": deployment.block_size,
        "--mamba-block-size": deployment.mamba_block_size,
        "--max-model-len": deployment.max_model_len,
        "--replayssm-buffer-len": deployment.replayssm_buffer_len,
        "alignment": alignment_tokens,
    }
    for name, value in positive.items():
        if value is not None and value < 1:
            message = f"{name} {value}: must be at least 1"
            raise InputError(message)
    if deployment.num_speculative_tokens < 0:
        message = (
            f"num_speculative_tokens {deployment.num_speculative_tokens}: must not be negative"
        )
        raise InputError(message)


def _as_known_to(model: ModelShape, rule: Rule, trace: Trace) -> ModelShape:
    """The model as the release sees it: not yet known, known, or removed."""
    if (
        model.first_version
        and rule.version < model.first_version
        and rule.name.startswith("vllm-0")
    ):
        first = version_text(model.first_version)
        trace.note(f"hypothetical: vLLM has {model.architecture} since {first}")
    if model.last_version is None or rule.version <= model.last_version:
        return model
    last = version_text(model.last_version)
    if model.transformers_since is None or rule.version < model.transformers_since:
        message = (
            f"Model architecture {model.architecture} was supported in vLLM until v{last}, and is "
            "not supported anymore. Please use an older version of vLLM if you want to use this "
            "model architecture."
        )
        raise EngineRefusalError(message, error_class="ValidationError")
    trace.note(
        f"{model.architecture} was removed after vLLM {last}; it runs on the Transformers backend, "
        "which is not hybrid"
    )
    return replace(model, recurrent=None, architecture="TransformersForCausalLM")


def _check_deployment(model: ModelShape, deployment: Deployment, rule: Rule) -> None:
    if model.recurrent is not None:
        check_turboquant(model, deployment, rule)
    check_heads(model, deployment)
    check_quantised_dtype(model, deployment)
    if deployment.pipeline_parallel_size > 1 and model.pipeline_refusal:
        raise EngineRefusalError(model.pipeline_refusal, error_class="NotImplementedError")


def _hybrid(
    model: ModelShape,
    recurrent: RecurrentShape,
    deployment: Deployment,
    rule: Rule,
    alignment_tokens: int | None,
    backends: tuple[BackendSizes, ...] | None,
    trace: Trace,
) -> PageDerivation:
    mode = resolve_mode(model, recurrent, deployment, rule, trace)
    longest = deployment.max_model_len or model.max_model_len
    check_mamba_block_size(deployment, mode, longest, rule)
    check_replayssm(model, recurrent, deployment, mode, rule)
    if _cpu_mla(model, deployment, rule) and mode.enable_prefix_caching:
        refuse_mamba_block_size()
    state, tensors = state_bytes(model, recurrent, deployment, rule, trace)
    token = bytes_per_token(model, deployment, rule, trace, backends[0] if backends else None)
    inputs = RuleInputs(
        model=model,
        recurrent=recurrent,
        deployment=deployment,
        rule=rule,
        backends=(multiples_of(alignment_tokens or 16),) if backends is None else backends,
        alignment_tokens=alignment_tokens if backends is None else None,
        bytes_per_token=token,
        state_bytes=state,
        mode=mode,
        max_model_len=longest,
    )
    outcome = _page(inputs, tensors, trace)
    return _derivation(inputs, outcome, tensors, trace)


def _cpu_mla(model: ModelShape, deployment: Deployment, rule: Rule) -> bool:
    known = CPU_MLA_WITHOUT_CACHING.holds(rule.version)
    return known and deployment.platform == "cpu" and model.attention.is_mla


def _page(inputs: RuleInputs, tensors: tuple[StateTensor, ...], trace: Trace) -> PageOutcome:
    if inputs.deployment.engine == "vllm-ascend":
        alignment = old_alignment(inputs)
        if alignment is None:
            return ascend_page(inputs, tensors, trace)
        return config_page(replace(inputs, alignment_tokens=alignment), trace)
    if RULE_IN_PLATFORM.holds(inputs.rule.version):
        if not inputs.backends:
            return untouched_page(inputs, trace)
        return platform_page(inputs, trace)
    return config_page(inputs, trace)


def _derivation(
    inputs: RuleInputs, outcome: PageOutcome, tensors: tuple[StateTensor, ...], trace: Trace
) -> PageDerivation:
    page = outcome.block_size * inputs.bytes_per_token
    padded = outcome.padded_bytes
    return PageDerivation(
        model=inputs.model,
        deployment=inputs.deployment,
        rule=inputs.rule.name,
        alignment_tokens=outcome.alignment_tokens,
        block_size_tokens=outcome.block_size,
        attention_bytes_per_token=inputs.bytes_per_token,
        attention_page_bytes=page,
        state_bytes=inputs.state_bytes,
        padding_bytes=0 if padded is None else padded - inputs.state_bytes,
        padding_pct=_padding_pct(inputs, outcome, tensors),
        mamba_block_size=outcome.mamba_block_size,
        mamba_cache_mode=inputs.mode.mode,
        enable_prefix_caching=inputs.mode.enable_prefix_caching,
        steps=tuple(trace.steps),
        notes=tuple(trace.notes),
        mamba_page_padded_bytes=padded,
        skip_page_padded_bytes=outcome.skip_padded_bytes,
        rule_ran=outcome.rule_ran,
        state_tensors=tensors,
    )


def _padding_pct(
    inputs: RuleInputs, outcome: PageOutcome, tensors: tuple[StateTensor, ...]
) -> float | None:
    padded = outcome.padded_bytes
    if padded is None:
        return None
    if inputs.deployment.engine == "vllm-ascend" and old_alignment(inputs) is None:
        return ascend_padding_pct(tensors, padded)
    return 100 * (padded - inputs.state_bytes) / inputs.state_bytes
