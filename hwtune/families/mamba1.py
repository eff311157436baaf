"""Mamba1 mixers beside attention: Jamba.

Source: vLLM model_executor/layers/mamba/mamba_utils.py mamba1_state_shape; no draft tokens.
"""

from __future__ import annotations

from hwtune.domain.model import RecurrentShape, StateRequest, StateTensor
from hwtune.families.parts import ArchitectureInfo, divide
from hwtune.families.reader import ConfigReader

NAME = "mamba1"
ARCHITECTURES = {
    "JambaForCausalLM": ArchitectureInfo(),
    "JambaForSequenceClassification": ArchitectureInfo(),
}
UNIDENTIFIABLE: tuple[str, ...] = ()


def read_recurrent(reader: ConfigReader, architecture: str, layers: int | None) -> RecurrentShape:
    """The Mamba1 layers of a config."""
    hidden = reader.integer("hidden size", "hidden_size")
    width = int(reader.number("Mamba expansion", "mamba_expand") * hidden)
    state = reader.integer("Mamba state", "mamba_d_state")
    kernel = reader.integer("Mamba conv kernel", "mamba_d_conv")

    def tensors(request: StateRequest) -> tuple[StateTensor, ...]:
        local = divide(width, request.tensor_parallel_size)
        conv = StateTensor(
            kind="conv",
            shape=(kernel - 1, local),
            dtype=request.conv_dtype,
            formula="(kernel - 1) x expand x hidden size / TP",
        )
        ssm = StateTensor(
            kind="ssm",
            shape=(local, state),
            dtype=request.ssm_dtype,
            formula="expand x hidden size / TP x state",
        )
        return conv, ssm

    return RecurrentShape(
        num_layers=layers,
        kind=NAME,
        state_tensors=tensors,
        supports_all_mode=True,
        chunk_size=reader.optional("chunk size", "mamba_chunk_size", "chunk_size"),
    )
