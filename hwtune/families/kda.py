"""Kimi Delta Attention beside MLA: Kimi-Linear, Kimi-K3, GLM-5.3, Bailing 3.

Source: vLLM model_executor/layers/mamba/mamba_utils.py kda_state_shape and kda_state_dtype.
"""

from __future__ import annotations

from hwtune.domain.model import RecurrentShape, StateRequest, StateTensor
from hwtune.domain.page_rules_versions import Version
from hwtune.families.parts import ArchitectureInfo, divide
from hwtune.families.reader import ConfigReader

NAME = "kda"
ARCHITECTURES = {
    "KimiLinearForCausalLM": ArchitectureInfo(first=(0, 11, 1)),
    "KimiK3ForConditionalGeneration": ArchitectureInfo(),
    "Glm5NextForCausalLM": ArchitectureInfo(),
    "Glm5NextForConditionalGeneration": ArchitectureInfo(),
    "BailingMoeV3ForCausalLM": ArchitectureInfo(),
    "BailingMoeV3VLForConditionalGeneration": ArchitectureInfo(),
}
UNIDENTIFIABLE = ("Kimi", "Glm5Next")
_NO_SPECULATION_BEFORE: Version = (0, 27, 0)
_SSM_DTYPE_SINCE: Version = (0, 30, 0)
_NEVER: Version = (999, 0, 0)


def read_recurrent(reader: ConfigReader, architecture: str, layers: int | None) -> RecurrentShape:
    """The KDA layers of a config; the recurrent state is float32 unless asked otherwise."""
    heads, size, kernel = _numbers(reader, architecture)

    def tensors(request: StateRequest) -> tuple[StateTensor, ...]:
        ranks = request.tensor_parallel_size
        drafts = request.num_speculative_tokens if request.version >= _NO_SPECULATION_BEFORE else 0
        conv = StateTensor(
            kind="conv",
            shape=(kernel - 1 + drafts, divide(3 * heads * size, ranks)),
            dtype=request.conv_dtype,
            formula="(kernel - 1 + draft tokens) x 3 x heads x head dim / TP",
        )
        ssm = StateTensor(
            kind="ssm",
            shape=(divide(heads, ranks), size, size),
            dtype=request.ssm_dtype,
            formula="heads / TP x head dim x head dim",
        )
        return conv, ssm

    bailing = architecture.startswith("BailingMoeV3")
    return RecurrentShape(
        num_layers=layers,
        kind=NAME,
        state_tensors=tensors,
        ssm_dtype_defaults=(((0, 0, 0), "float32"),),
        allowed_ssm_dtypes=() if bailing else ("float32", "bfloat16"),
        supports_replayssm=architecture.startswith("Kimi"),
        ssm_dtype_since=_NEVER if bailing else _SSM_DTYPE_SINCE,
    )


def _numbers(reader: ConfigReader, architecture: str) -> tuple[int, int, int]:
    """(heads, head dim, conv kernel) under the class's own key names."""
    if architecture.startswith("BailingMoeV3"):
        keys = ("num_attention_heads", "head_dim", "short_conv_kernel_size")
    elif architecture.startswith("Glm5Next") and not reader.has("linear_attn_config"):
        keys = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
    else:
        inner = ("num_heads", "head_dim", "short_conv_kernel_size")
        keys = tuple(f"linear_attn_config.{key}" for key in inner)  # type: ignore[assignment]
    heads, size, kernel = keys
    return (
        reader.integer("KDA heads", heads),
        reader.integer("KDA head dim", size),
        reader.integer("KDA conv kernel", kernel),
    )
