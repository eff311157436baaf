"""Lightning (linear) attention beside softmax attention: MiniMax-Text-01, Bailing 2.5.

Source: vLLM model_executor/layers/mamba/mamba_utils.py linear_attention_state_shape.
"""

from __future__ import annotations

from hwtune.domain.model import RecurrentShape, StateRequest, StateTensor
from hwtune.families.parts import ArchitectureInfo
from hwtune.families.reader import ConfigReader

NAME = "linear_attention"
_REMOVED = ArchitectureInfo(last=(0, 23, 0))
ARCHITECTURES = {
    "MiniMaxForCausalLM": _REMOVED,
    "MiniMaxText01ForCausalLM": _REMOVED,
    "MiniMaxM1ForCausalLM": _REMOVED,
    "MiniMaxVL01ForConditionalGeneration": _REMOVED,
    "BailingMoeV2_5ForCausalLM": ArchitectureInfo(),
}
UNIDENTIFIABLE: tuple[str, ...] = ()


def read_recurrent(reader: ConfigReader, architecture: str, layers: int | None) -> RecurrentShape:
    """The linear-attention layers of a config; the state follows --mamba-cache-dtype alone."""
    heads = reader.integer("number of attention heads", "num_attention_heads")
    size = reader.optional("linear head dim", "head_dim")
    if size is None:
        size = reader.integer("hidden size", "hidden_size") // heads

    def tensors(request: StateRequest) -> tuple[StateTensor, ...]:
        state = StateTensor(
            kind="ssm",
            shape=(heads // request.tensor_parallel_size, size, size),
            dtype=request.conv_dtype,
            formula="heads / TP x head dim x head dim",
        )
        return (state,)

    return RecurrentShape(num_layers=layers, kind=NAME, state_tensors=tensors)
