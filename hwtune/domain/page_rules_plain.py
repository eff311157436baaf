"""Models without recurrent layers, whose block size needs no derivation."""

from __future__ import annotations

from hwtune.domain.deployment import Deployment
from hwtune.domain.errors import InfeasibleError
from hwtune.domain.model import ModelShape
from hwtune.domain.page_rules_attention import bytes_per_token, skip_layers
from hwtune.domain.page_rules_backends import (
    DEFAULT_BLOCK_SIZE,
    BackendSizes,
    multiples_of,
    starting_block,
)
from hwtune.domain.page_rules_mode import refuse_unused_mamba_block
from hwtune.domain.page_rules_platform import CPU_BLOCK_SIZE
from hwtune.domain.page_rules_skip import SkipPages, shared_page
from hwtune.domain.page_rules_state import state_bytes
from hwtune.domain.page_rules_versions import (
    FULL_ATTENTION_ONLY_IS_PLAIN,
    GROUPED_ONLY_TOP_LEVEL,
    RULE_IN_PLATFORM,
    Rule,
)
from hwtune.domain.page_steps import PageDerivation, Trace


def is_hybrid(model: ModelShape, rule: Rule) -> bool:
    """Whether the release treats the model as hybrid: its class and top-level layer_types."""
    if model.recurrent is None:
        return False
    if model.attention_only == "attention":
        return not GROUPED_ONLY_TOP_LEVEL.holds(rule.version)
    if model.attention_only == "full_attention":
        return not FULL_ATTENTION_ONLY_IS_PLAIN.holds(rule.version)
    return True


def plain_page(
    model: ModelShape,
    deployment: Deployment,
    rule: Rule,
    alignment_tokens: int | None,
    backends: tuple[BackendSizes, ...] | None,
    trace: Trace,
) -> PageDerivation:
    """The block size of a model that is not hybrid: the user's, or the backend's preferred."""
    block, reason = _plain_block(model, deployment, rule, alignment_tokens, backends)
    source = rule.source_of("platforms/interface.py Platform.update_block_size_for_backend")
    token = _token_bytes(model, deployment, rule, trace)
    trace.add("block size", reason, {}, block, "tokens", source)
    trace.note("the model is not hybrid: no page is derived, the block size is the backend's")
    if model.attention.is_mla and deployment.block_size is None and backends is None:
        trace.note("MLA backends differ (FLASHMLA 64, CUTLASS_MLA 128): name --attention-backend")
    refuse_unused_mamba_block(deployment, rule)
    shared = _shared(model, deployment, rule, block, backends, trace)
    block = shared.block_size if shared else block
    return PageDerivation(
        model=model,
        deployment=deployment,
        rule=rule.name,
        alignment_tokens=block,
        block_size_tokens=block,
        attention_bytes_per_token=token,
        attention_page_bytes=block * token,
        state_bytes=None,
        padding_bytes=0,
        padding_pct=None,
        mamba_block_size=deployment.mamba_block_size,
        mamba_cache_mode=deployment.mamba_cache_mode or "none",
        enable_prefix_caching=deployment.enable_prefix_caching,
        steps=tuple(trace.steps),
        notes=tuple(trace.notes),
        hybrid=False,
        rule_ran=False,
        skip_page_padded_bytes=shared.page_bytes if shared else None,
        unused_state_bytes=_unused_state(model, deployment, rule),
    )


def _token_bytes(model: ModelShape, deployment: Deployment, rule: Rule, trace: Trace) -> int:
    """Bytes per token, or 0 when the config names no dtype: the block size does not need it."""
    if not model.attention.num_heads:
        trace.note("the model has no attention layer")
        return 0
    if deployment.dtype == "auto" and not model.dtype:
        trace.note("the config names no dtype: bytes are left out; give --dtype")
        return 0
    return bytes_per_token(model, deployment, rule, trace)


def _shared(
    model: ModelShape,
    deployment: Deployment,
    rule: Rule,
    block: int,
    backends: tuple[BackendSizes, ...] | None,
    trace: Trace,
) -> SkipPages | None:
    quantised = skip_layers(model, deployment, hybrid=False)
    if not quantised or deployment.platform == "cpu" or backends == ():
        return None
    first = backends[0] if backends else multiples_of(DEFAULT_BLOCK_SIZE)
    return shared_page(model, deployment, rule, first, block, 0, trace)


def _unused_state(model: ModelShape, deployment: Deployment, rule: Rule) -> int | None:
    if model.recurrent is None:
        return None
    try:
        return state_bytes(model, model.recurrent, deployment, rule, Trace())[0]
    except InfeasibleError:  # nobody asks for it
        return None


def _plain_block(
    model: ModelShape,
    deployment: Deployment,
    rule: Rule,
    alignment_tokens: int | None,
    backends: tuple[BackendSizes, ...] | None,
) -> tuple[int, str]:
    if deployment.platform == "cpu" and model.attention.is_mla:
        return DEFAULT_BLOCK_SIZE, "CPU_MLA takes 16 only"
    if deployment.block_size is not None:
        return deployment.block_size, "--block-size"
    if backends and deployment.platform != "cpu" and RULE_IN_PLATFORM.holds(rule.version):
        return starting_block(backends, rule), "preferred by the backends"
    if deployment.platform == "cpu":
        return CPU_BLOCK_SIZE, "default of the CPU platform"
    if deployment.engine == "vllm-ascend":
        return 128, "kernel block of the Ascend operators"
    if alignment_tokens is None or not RULE_IN_PLATFORM.holds(rule.version):
        return DEFAULT_BLOCK_SIZE, "vLLM's default"
    return alignment_tokens, "block size of the backend"
