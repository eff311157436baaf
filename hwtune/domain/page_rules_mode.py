"""What vLLM makes of prefix caching for a model with recurrent layers."""

from __future__ import annotations

from dataclasses import dataclass

from hwtune.domain.deployment import Deployment
from hwtune.domain.errors import InfeasibleError, InputError
from hwtune.domain.model import ModelShape, RecurrentShape
from hwtune.domain.page_rules_versions import (
    ALIGN_WHEN_DRAFTING,
    ALL_MODE,
    ALL_MODE_BY_DEFAULT,
    ALL_MODE_WITHOUT_NAME,
    MAMBA_BLOCK_SIZE_FLAG,
    MAMBA_CACHE_MODE,
    PREFIX_CACHING_DEFAULT_ON,
    PREFIX_CACHING_FORCED_OFF,
    REPLAYSSM,
    REPLAYSSM_WITH_DRAFTS,
    Rule,
)
from hwtune.domain.page_steps import EngineRefusalError, Trace

MODES = ("none", "align", "all")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMode:
    """The resolved prefix-caching settings."""

    enable_prefix_caching: bool
    mode: str
    """none, align or all, as the engine reports it."""
    all_rule: bool
    """Whether the page is rounded to the model's chunk size."""


def _asked_mode(deployment: Deployment) -> str:
    mode = deployment.mamba_cache_mode or "none"
    if mode not in MODES:
        message = f"--mamba-cache-mode {mode}: expected one of {', '.join(MODES)}"
        raise InputError(message)
    return mode


def check_mode(deployment: Deployment, rule: Rule) -> None:
    """Raises EngineRefusalError when the release no longer has the asked cache mode."""
    if _asked_mode(deployment) == "all" and not ALL_MODE.holds(rule.version):
        message = "mamba_cache_mode: Input should be 'align' or 'none'"
        raise EngineRefusalError(message, error_class="ValidationError")


def resolve_mode(
    model: ModelShape,
    recurrent: RecurrentShape,
    deployment: Deployment,
    rule: Rule,
    trace: Trace,
) -> CacheMode:
    """Prefix caching and cache mode of a hybrid model, in the release's own order of events.

    Source: model_executor/models/config.py MambaModelConfig.verify_and_update_config.

    Raises:
        EngineRefusalError: the release does not know the asked mode.
        InputError: the mode is no mode at all.
    """
    check_mode(deployment, rule)
    wanted = deployment.enable_prefix_caching
    caching = PREFIX_CACHING_DEFAULT_ON.holds(rule.version) if wanted is None else wanted
    if PREFIX_CACHING_FORCED_OFF.holds(rule.version) and caching:
        trace.note("this release switches prefix caching off for hybrid models")
        caching = False
    if ALL_MODE_WITHOUT_NAME.holds(rule.version):
        if caching and not recurrent.supports_all_mode:
            trace.note("this release switches prefix caching off for this model class")
        caching = caching and recurrent.supports_all_mode
        return CacheMode(enable_prefix_caching=caching, mode="none", all_rule=caching)
    if not MAMBA_CACHE_MODE.holds(rule.version):
        return CacheMode(enable_prefix_caching=caching, mode="none", all_rule=False)
    mode = _named_mode(recurrent, deployment, rule, trace) if caching else "none"
    if not caching and _asked_mode(deployment) != "none":
        trace.note("mamba cache mode is set to 'none' because prefix caching is off")
    return CacheMode(enable_prefix_caching=caching, mode=mode, all_rule=mode == "all")


def _named_mode(recurrent: RecurrentShape, deployment: Deployment, rule: Rule, trace: Trace) -> str:
    asked = _asked_mode(deployment)
    supported = recurrent.supports_all_mode
    if asked == "none":
        asked = "all" if supported and ALL_MODE_BY_DEFAULT.holds(rule.version) else "align"
    if (
        asked == "all"
        and deployment.num_speculative_tokens
        and ALIGN_WHEN_DRAFTING.holds(rule.version)
    ):
        trace.note("this release uses mode 'align' when speculative decoding is on")
        return "align"
    if asked == "all" and not supported:
        trace.note("this model class has no mode 'all'; vLLM falls back to 'align'")
        return "align"
    return asked


def check_replayssm(
    model: ModelShape,
    recurrent: RecurrentShape,
    deployment: Deployment,
    mode: CacheMode,
    rule: Rule,
) -> None:
    """Raises EngineRefusalError where vLLM refuses --use-replayssm.

    Source: config/vllm.py VllmConfig.validate_mamba_cached_kernel, with its default mamba backend.
    """
    if not deployment.use_replayssm:
        return
    if not REPLAYSSM.holds(rule.version):
        message = f"--use-replayssm: {rule.name} does not have it yet (0.27 does)"
        raise InputError(message)
    if not recurrent.supports_replayssm:
        refusal = f"--use-replayssm is not supported for architecture {model.architecture!r}"
        raise EngineRefusalError(refusal, error_class="ValidationError")
    if mode.mode == "all":
        refusal = (
            "--use-replayssm supports prefix caching only in align mode; pass --mamba-cache-mode "
            "align"
        )
        raise EngineRefusalError(refusal, error_class="ValidationError")
    if deployment.num_speculative_tokens:
        _refuse_drafts(recurrent, deployment, mode, rule)


def _refuse_drafts(
    recurrent: RecurrentShape, deployment: Deployment, mode: CacheMode, rule: Rule
) -> None:
    """Raises what ReplaySSM and draft tokens together give."""
    queries = 1 + deployment.num_speculative_tokens
    if not REPLAYSSM_WITH_DRAFTS.holds(rule.version):
        refusal = "--use-replayssm does not support speculative decoding"
    elif recurrent.kind == "kda":
        message = "--use-replayssm beside draft tokens on KDA layers (RecoverSSM) is not modelled"
        raise InfeasibleError(message)
    elif mode.mode != "none":
        refusal = "FlashInfer ReplaySSM speculative decoding requires --mamba-cache-mode none"
    elif deployment.replayssm_buffer_len < queries:
        refusal = (
            "FlashInfer ReplaySSM speculative decoding requires --replayssm-buffer-len >= 1 + "
            f"num_speculative_tokens ({queries}); got {deployment.replayssm_buffer_len}"
        )
    else:
        refusal = "Mamba2 ReplaySSM speculative decoding requires --mamba-backend flashinfer"
    raise EngineRefusalError(refusal, error_class="ValidationError")


def check_mamba_block_size(
    deployment: Deployment, mode: CacheMode, max_model_len: int | None, rule: Rule
) -> None:
    """Raises EngineRefusalError for --mamba-block-size without prefix caching."""
    asked = deployment.mamba_block_size
    if asked is None or asked == max_model_len or not MAMBA_BLOCK_SIZE_FLAG.holds(rule.version):
        return
    if not mode.enable_prefix_caching:
        refuse_mamba_block_size()


def refuse_unused_mamba_block(deployment: Deployment, rule: Rule) -> None:
    """As ``check_mamba_block_size``, for a model that is not hybrid."""
    asked = deployment.mamba_block_size is not None and MAMBA_BLOCK_SIZE_FLAG.holds(rule.version)
    if asked and deployment.enable_prefix_caching is False:
        refuse_mamba_block_size()


def refuse_mamba_block_size() -> None:
    """Raises what vLLM raises for a mamba block size without prefix caching."""
    message = "--mamba-block-size can only be set with --enable-prefix-caching"
    raise EngineRefusalError(message, error_class="ValidationError")
