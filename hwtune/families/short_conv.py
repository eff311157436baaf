"""Short convolutions beside attention: LFM2.

Source: vLLM model_executor/layers/mamba/mamba_utils.py short_conv_state_shape and models/lfm2*.py.
"""

from __future__ import annotations

from hwtune.domain.model import RecurrentShape, StateRequest, StateTensor
from hwtune.families.parts import ArchitectureInfo, divide
from hwtune.families.reader import ConfigReader

NAME = "short_conv"
ARCHITECTURES = {
    "Lfm2ForCausalLM": ArchitectureInfo(),
    "Lfm2MoeForCausalLM": ArchitectureInfo(),
    "Lfm2VlForConditionalGeneration": ArchitectureInfo(),
    "ColBERTLfm2Model": ArchitectureInfo(),
}
UNIDENTIFIABLE: tuple[str, ...] = ()


def read_recurrent(reader: ConfigReader, architecture: str, layers: int | None) -> RecurrentShape:
    """The short-convolution layers of a config; they keep no room for draft tokens."""
    kernel = reader.integer("conv kernel", "conv_L_cache")
    key = "conv_dim" if architecture == "Lfm2ForCausalLM" else "hidden_size"
    width = reader.integer("conv width", key)

    def tensors(request: StateRequest) -> tuple[StateTensor, ...]:
        conv = StateTensor(
            kind="conv",
            shape=(kernel - 1, divide(width, request.tensor_parallel_size)),
            dtype=request.conv_dtype,
            formula="(kernel - 1) x conv width / TP",
        )
        return (conv,)

    return RecurrentShape(num_layers=layers, kind=NAME, state_tensors=tensors)
