"""The page rule of vllm-ascend: the K half of a page must equal the SSM state."""

from __future__ import annotations

from collections.abc import Sequence

from hwtune.domain.errors import InfeasibleError
from hwtune.domain.model import ITEM_BYTES, StateTensor
from hwtune.domain.page_rules_attention import kv_dtype, kv_heads_per_rank
from hwtune.domain.page_rules_common import PageOutcome, RuleInputs
from hwtune.domain.page_steps import EngineRefusalError, Trace
from hwtune.domain.units import ceil_div

_SOURCE = "patch/platform/patch_mamba_config.py"
ALIGNMENT = 128
"""Tokens; kernel block of the Ascend attention operators."""


def old_alignment(inputs: RuleInputs) -> int | None:
    """Granularity of releases that used upstream's formula, or None when the K rule applies."""
    if inputs.deployment.ascend_310p:
        return _310p_alignment(inputs)
    if inputs.rule.version >= (0, 16, 0):
        return None
    return 64 if inputs.rule.version < (0, 11, 0) else ALIGNMENT


def _310p_alignment(inputs: RuleInputs) -> int:
    if inputs.model.attention.is_mla:
        message = "MLA is not supported on 310P currently."
        raise EngineRefusalError(message, error_class="RuntimeError")
    return ALIGNMENT


def ascend_page(inputs: RuleInputs, tensors: Sequence[StateTensor], trace: Trace) -> PageOutcome:
    """The page of vllm-ascend 0.16 and later.

    Source: vllm_ascend/patch/platform/patch_mamba_config.py.

    Raises:
        EngineRefusalError: no multiple of 128 tokens makes the K half equal to the SSM state.
    """
    ssm, conv = _ssm_and_conv(tensors)
    key = _key_bytes(inputs)
    source = inputs.rule.source_of(_SOURCE)
    trace.add("K bytes per token", "KV heads per rank x head size x bytes", {}, key, "B", source)
    block = ALIGNMENT * ceil_div(ssm, ALIGNMENT * key)
    text = "128 x ceil(SSM bytes / (128 x K bytes per token))"
    trace.add("page", text, {"SSM bytes": ssm}, block, "tokens", source)
    if key * block != ssm:
        message = "Cannot align ssm_page_size and attn_page_size."
        raise EngineRefusalError(message, error_class="AssertionError")
    chosen = max(block, inputs.deployment.block_size or 0)
    if chosen > block:
        trace.note(f"block size {chosen} above {block} corrupts output on Ascend (issue #13853)")
    page = chosen * inputs.bytes_per_token + conv
    trace.add("padded page", "page x bytes per token + conv bytes", {}, page, "B", source)
    align = inputs.mode.mode == "align"
    return PageOutcome(
        block_size=chosen,
        alignment_tokens=ALIGNMENT,
        mamba_block_size=chosen if align else inputs.max_model_len,
        padded_bytes=page,
    )


def _ssm_and_conv(tensors: Sequence[StateTensor]) -> tuple[int, int]:
    sizes = sorted(tensor.size_bytes for tensor in tensors)
    if not sizes:
        message = "vllm-ascend: the model has no recurrent state"
        raise InfeasibleError(message)
    return sizes[-1], sizes[0] if len(sizes) > 1 else 0


def _key_bytes(inputs: RuleInputs) -> int:
    attention, deployment = inputs.model.attention, inputs.deployment
    size = ITEM_BYTES.get(kv_dtype(inputs.model, deployment, inputs.rule), 1)
    if attention.is_mla:
        return (attention.kv_lora_rank or attention.head_size) * size
    heads = kv_heads_per_rank(attention, deployment.tensor_parallel_size)
    return heads * attention.head_size * size


def ascend_padding_pct(tensors: Sequence[StateTensor], padded: int) -> float:
    """Padding as vllm-ascend prints it: conv bytes relative to the padded page."""
    return 100 * _ssm_and_conv(tensors)[1] / padded
