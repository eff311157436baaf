"""Which operators a step makes vllm-ascend call, per device.

Source: vllm-ascend 182b75ea84, attention/attention_v1.py (forward_impl, using_paged_attention,
AscendC8AttentionBackendImpl), attention/mla_v1.py, _310p/attention/attention_v1.py, ops/gdn.py.
Not run on an NPU here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from hwtune.domain.scheduler.classify import (
    AscendState,
    BatchRow,
    GdnGroups,
    RunnerOptions,
    Split,
    gdn_groups,
    reordered,
    split_rows,
    state_310p,
    state_v1,
    stored_state,
)

AscendDevice = Literal["A2", "A3", "A5", "310P"]
Part = Literal["all rows", "decode rows", "prefill rows"]

FIA: Final = "npu_fused_infer_attention_score"
FIA_V2: Final = "npu_fused_infer_attention_score_v2"
PAGED: Final = "_npu_paged_attention"
LARGE_HEAD_SIZE: Final = 512
"""Head size for which decode always takes paged attention (FIA_TND_LARGE_HEAD_FALLBACK_HEAD_SIZE)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendLayer:
    """What is fixed about a full-attention layer on an NPU."""

    device: AscendDevice
    head_size: int = 128
    is_mla: bool = False
    int8_cache: bool = False
    """C8: the KV cache holds INT8."""
    sliding_window: bool = False
    sinks: bool = False
    speculative: bool = False
    """A speculative config is set."""
    full_decode_only: bool = False
    """cudagraph_mode is FULL_DECODE_ONLY."""
    paged_sizes: tuple[int, ...] = ()
    """additional_config.pa_shape_list: token counts whose decode takes paged attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendCall:
    """One operator call of one layer."""

    operator: str
    part: Part
    layout: str
    """input_layout of FIA; empty where the operator has none."""
    reads_cache: bool
    """False: raw K and V of this step, without a block table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendRunner:
    """Model runner v1 of vllm-ascend with the layers it runs."""

    options: RunnerOptions
    layer: AscendLayer
    has_gdn: bool

    def step(self, rows: Sequence[BatchRow]) -> tuple[AscendState, tuple[AscendCall, ...]]:
        """The state that attention sees, and the calls of one layer of each kind."""
        options = self.options
        if self.layer.device == "310P":
            state = state_310p(rows, options)
        else:
            state = stored_state(state_v1(rows, options), options)
        threshold = 1 + options.num_speculative_tokens
        split = split_rows(reordered(rows, threshold), threshold, short_extends_are_decodes=True)
        gdn = gdn_calls(gdn_groups(rows)) if self.has_gdn else ()
        return state, (*attention_calls(self.layer, state, split), *gdn)


def attention_calls(layer: AscendLayer, state: AscendState, split: Split) -> tuple[AscendCall, ...]:
    """Calls of one full-attention layer in one step.

    Args:
        state: what the runner stored (``AscendClasses.v1``, or ``state_310p``).
        split: rows of full attention, decodes first.
    """
    if layer.device == "310P":
        return (_310p_call(state),)
    if layer.is_mla:
        return _per_phase(split, FIA_V2, "TND_NTD" if layer.speculative else "BNSD_NBSD", FIA)
    if layer.int8_cache:
        return _int8_calls(state, split)
    tokens = split.num_decode_tokens + split.num_prefill_tokens
    if state == "DecodeOnly" and not layer.sliding_window and takes_paged(layer, tokens):
        return (_call(PAGED, layout="", reads_cache=True),)
    mixed = state == "ChunkedPrefill" and split.num_decodes > 0 and split.num_prefills > 0
    if layer.device == "A5" and mixed and not layer.sinks and not layer.sliding_window:
        return _per_phase(split, FIA, "TND", FIA)
    operator = FIA_V2 if layer.sinks else FIA
    return (_call(operator, reads_cache=state != "PrefillNoCache"),)


def takes_paged(layer: AscendLayer, num_tokens: int) -> bool:
    """``using_paged_attention``: by default no step does."""
    if layer.speculative or layer.device == "A5":
        return False
    if layer.head_size == LARGE_HEAD_SIZE:
        return True
    return layer.full_decode_only and num_tokens in layer.paged_sizes


def gdn_calls(groups: GdnGroups) -> tuple[AscendCall, ...]:
    """Calls of one GDN layer beside its convolution; a mixed step runs both parts.

    Prefill takes the operator only where its start-up probe succeeds, else a Triton kernel.
    """
    calls = []
    if groups.num_drafted or groups.num_decodes:
        calls.append(_call("npu_recurrent_gated_delta_rule", "decode rows", "", reads_cache=True))
    if groups.num_prefills:
        calls.append(_call("npu_chunk_gated_delta_rule", "prefill rows", "", reads_cache=True))
    return tuple(calls)


def _call(
    operator: str, part: Part = "all rows", layout: str = "TND", *, reads_cache: bool
) -> AscendCall:
    return AscendCall(operator=operator, part=part, layout=layout, reads_cache=reads_cache)


def _310p_call(state: AscendState) -> AscendCall:
    if state == "PrefillNoCache":
        return _call("_npu_flash_attention", layout="", reads_cache=False)
    if state == "DecodeOnly":
        return _call(PAGED, layout="", reads_cache=True)
    return _call("_npu_paged_attention_splitfuse", layout="", reads_cache=True)


def _per_phase(
    split: Split, decode_operator: str, decode_layout: str, prefill_operator: str
) -> tuple[AscendCall, ...]:
    calls = []
    if split.num_decodes:
        calls.append(_call(decode_operator, "decode rows", decode_layout, reads_cache=True))
    if split.num_prefills:
        calls.append(_call(prefill_operator, "prefill rows", reads_cache=True))
    return tuple(calls)


def _int8_calls(state: AscendState, split: Split) -> tuple[AscendCall, ...]:
    if state == "DecodeOnly":
        return (_call(FIA, layout="BNSD", reads_cache=True),)
    if state == "ChunkedPrefill":
        return _per_phase(split, FIA, "BNSD", FIA)
    return (_call(FIA, reads_cache=state != "PrefillNoCache"),)
