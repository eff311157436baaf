"""The page rule of vLLM 0.20 and later: run by the platform after the model is loaded."""

from __future__ import annotations

from dataclasses import replace
from math import lcm

from hwtune.domain.page_rules_backends import DEFAULT_BLOCK_SIZE, starting_block
from hwtune.domain.page_rules_common import (
    DEFAULT_CHUNK_SIZE,
    PageOutcome,
    RuleInputs,
    pad,
    resolved_mamba_block,
    smallest_page,
)
from hwtune.domain.page_rules_skip import align_skip_layers
from hwtune.domain.page_rules_versions import (
    ALIGNED_SIZE_CHECK,
    BACKEND_MULTIPLE,
    CHECKPOINT_ALIGNMENT,
    CPU_WITHOUT_RULE,
    MLA_ALIGNMENT_128,
)
from hwtune.domain.page_steps import EngineRefusalError, Trace
from hwtune.domain.units import round_up

CPU_BLOCK_SIZE = 128
"""Tokens; platforms/cpu.py CpuPlatform.check_and_update_config."""
_XPU_GDN_MULTIPLE = 64
GDN_CHECKPOINT_TOKENS = 64
"""Tokens; prefill-checkpoint alignment of GDN layers whose prefill runs on FlashInfer (0.33)."""
_RULE = "platforms/interface.py Platform._align_hybrid_block_size"


def platform_page(inputs: RuleInputs, trace: Trace) -> PageOutcome:
    """The page of releases since 0.20.0.

    Source: platforms/interface.py Platform.update_block_size_for_backend; platforms/cpu.py and
    platforms/xpu.py override it.

    Raises:
        EngineRefusalError: the backends share no size or reject the page.
    """
    start = initial_block(inputs, trace)
    if inputs.deployment.platform == "cpu" and CPU_WITHOUT_RULE.holds(inputs.rule.version):
        return _without_rule(inputs, start, trace)
    outcome = _align_hybrid(inputs, start, trace)
    if inputs.deployment.kv_cache_dtype_skip_layers and inputs.deployment.platform != "cpu":
        outcome = align_skip_layers(inputs, outcome, trace)
    _check(inputs, start, outcome.block_size)
    if _has_xpu_gdn(inputs):
        outcome = _xpu_gdn(inputs, outcome, trace)
    return outcome


def untouched_page(inputs: RuleInputs, trace: Trace) -> PageOutcome:
    """A model without an attention backend: the rule returns before it changes anything."""
    trace.note("no attention backend: vLLM leaves the block size alone")
    outcome = _untouched(inputs, inputs.deployment.block_size or DEFAULT_BLOCK_SIZE)
    return _xpu_gdn(inputs, outcome, trace) if _has_xpu_gdn(inputs) else outcome


def _without_rule(inputs: RuleInputs, start: int, trace: Trace) -> PageOutcome:
    """0.20 on CPU: nothing aligns the pages, and only an attention page that divides the state fits.

    Source: platforms/cpu.py CpuPlatform.update_block_size_for_backend, which does nothing, and
    v1/core/kv_cache_utils.py unify_kv_cache_spec_page_size of 0.20.2, which lengthens attention
    blocks by a whole factor and cannot lengthen the state.

    Raises:
        EngineRefusalError: the state's page is no multiple of the attention page.
    """
    attention = start * inputs.bytes_per_token
    if inputs.state_bytes % attention:
        message = (
            "The page size of the layer is not divisible by the maximum page size. Cannot unify by "
            f"adjusting block_size. (On CPU vLLM 0.20 aligns no pages: attention {attention:,} B at "
            f"block size {start}, state {inputs.state_bytes:,} B; 0.21 and later align them)"
        )
        raise EngineRefusalError(message, error_class="NotImplementedError")
    times = inputs.state_bytes // attention
    trace.note(f"0.20 aligns no pages on CPU; the state takes {times} x the attention page")
    return _untouched(inputs, start)


def _untouched(inputs: RuleInputs, block: int) -> PageOutcome:
    return PageOutcome(
        block_size=block,
        alignment_tokens=block,
        mamba_block_size=inputs.deployment.mamba_block_size
        or (block if inputs.mode.enable_prefix_caching else inputs.max_model_len),
        rule_ran=False,
    )


def initial_block(inputs: RuleInputs, trace: Trace) -> int:
    """The block size, in tokens, before the hybrid rule looks at it."""
    deployment = inputs.deployment
    source = inputs.rule.source_of("platforms/interface.py Platform.update_block_size_for_backend")
    if deployment.platform == "cpu" and inputs.model.attention.is_mla:
        value, reason = DEFAULT_BLOCK_SIZE, "CPU_MLA takes 16 only"
    elif deployment.block_size is not None:
        value, reason = deployment.block_size, "--block-size"
    elif inputs.alignment_tokens is not None:
        value, reason = inputs.alignment_tokens, "the backend's block size"
    elif deployment.platform == "cpu":
        value, reason = CPU_BLOCK_SIZE, "default of the CPU platform"
    else:
        value = starting_block(inputs.backends, inputs.rule)
        reason = "preferred by " + ", ".join(backend.name for backend in inputs.backends)
    return trace.add("starting block size", reason, {}, value, "tokens", source)


def _align_hybrid(inputs: RuleInputs, start: int, trace: Trace) -> PageOutcome:
    alignment = _alignment(inputs, start, trace)
    chunk = _chunk(inputs) if inputs.mode.all_rule else None
    needed = smallest_page(inputs, alignment, chunk, trace)
    if BACKEND_MULTIPLE.holds(inputs.rule.version):
        needed = _backend_multiple(inputs, needed, trace)
    block = max(start, needed)
    if start >= needed:
        trace.note(f"the block size {start} holds the state already; vLLM prints no line about it")
    return PageOutcome(
        block_size=block,
        alignment_tokens=alignment,
        mamba_block_size=resolved_mamba_block(inputs, block, block if chunk else None),
        padded_bytes=pad(inputs, block, trace),
    )


def _alignment(inputs: RuleInputs, start: int, trace: Trace) -> int:
    smallest = inputs.backends[0].smallest
    value, reason = max(smallest, start), "max(smallest kernel block of the backend, block size)"
    if inputs.model.attention.is_mla and MLA_ALIGNMENT_128.holds(inputs.rule.version):
        value, reason = max(value, 128), f"{reason}, at least 128 for MLA"
    checkpoint = inputs.deployment.prefill_checkpoint_tokens
    applies = CHECKPOINT_ALIGNMENT.holds(inputs.rule.version) and inputs.mode.mode == "align"
    if applies and checkpoint is None and inputs.recurrent.kind == "gdn":
        _note_checkpoints(inputs, value, trace)
    if checkpoint and applies:
        value, reason = lcm(value, checkpoint), f"lcm({reason}; prefill checkpoint {checkpoint})"
    values: dict[str, str | int | float] = {"smallest kernel block": smallest, "block size": start}
    return trace.add("alignment", reason, values, value, "tokens", inputs.rule.source_of(_RULE))


def _note_checkpoints(inputs: RuleInputs, alignment: int, trace: Trace) -> None:
    """0.33 looks at the device for this, which a derivation cannot."""
    if inputs.deployment.platform == "cuda" and alignment % GDN_CHECKPOINT_TOKENS:
        trace.note(
            f"where GDN prefill runs on FlashInfer (by default on Hopper) this release also rounds "
            f"to multiples of {GDN_CHECKPOINT_TOKENS}; say --prefill-checkpoint-tokens "
            f"{GDN_CHECKPOINT_TOKENS}"
        )


def _chunk(inputs: RuleInputs) -> int:
    chunk = inputs.recurrent.chunk_size or DEFAULT_CHUNK_SIZE
    return inputs.deployment.mamba_block_size or chunk


def _backend_multiple(inputs: RuleInputs, needed: int, trace: Trace) -> int:
    multiple = lcm(*(backend.smallest for backend in inputs.backends))
    rounded = round_up(needed, multiple)
    if rounded != needed:
        text = "rounded up to lcm of every backend's smallest kernel block"
        source = inputs.rule.source_of(_RULE)
        trace.add("page for all backends", text, {"lcm": multiple}, rounded, "tokens", source)
    return rounded


def _check(inputs: RuleInputs, start: int, block: int) -> None:
    if block == start or not ALIGNED_SIZE_CHECK.holds(inputs.rule.version):
        return
    rejecting = [backend.name for backend in inputs.backends if not backend.supports(block)]
    if rejecting:
        message = (
            f"Aligned KV cache block size {block} is not supported by attention backend(s): "
            f"{', '.join(rejecting)}."
        )
        raise EngineRefusalError(message, error_class="ValueError")


def _has_xpu_gdn(inputs: RuleInputs) -> bool:
    return inputs.deployment.platform == "xpu" and inputs.recurrent.kind == "gdn"


def _xpu_gdn(inputs: RuleInputs, outcome: PageOutcome, trace: Trace) -> PageOutcome:
    """XPU's GDN kernel needs pages that are multiples of 64 (platforms/xpu.py)."""
    block = round_up(outcome.block_size, _XPU_GDN_MULTIPLE)
    if block == outcome.block_size:
        return outcome
    source = inputs.rule.source_of("platforms/xpu.py XPUPlatform.update_block_size_for_backend")
    trace.add("page on XPU", "rounded up to a multiple of 64", {}, block, "tokens", source)
    padded = outcome.padded_bytes
    if padded is not None:
        padded = block * (padded // outcome.block_size)
    mamba = block if inputs.mode.mode == "align" else outcome.mamba_block_size
    _check(inputs, outcome.block_size, block)
    return replace(outcome, block_size=block, padded_bytes=padded, mamba_block_size=mamba)
