"""Mamba2 mixers beside attention: Nemotron-H, Granite 4 hybrid, Falcon-H1, Zamba2, Bamba, Plamo2.

Source: vLLM model_executor/layers/mamba/mamba_utils.py mamba2_state_shape and the model classes.
"""

from __future__ import annotations

from dataclasses import dataclass

from hwtune.domain.model import RecurrentShape, StateRequest, StateTensor
from hwtune.domain.page_rules_versions import Version
from hwtune.families.parts import NO_PIPELINE, ArchitectureInfo, divide
from hwtune.families.reader import ConfigReader

NAME = "mamba2"
ARCHITECTURES = {
    "NemotronHForCausalLM": ArchitectureInfo(),
    "NemotronHPuzzleForCausalLM": ArchitectureInfo(),
    "NemotronH_Nano_VL_V2": ArchitectureInfo(),
    "NemotronH_Nano_Omni_Reasoning_V3": ArchitectureInfo(),
    "NemotronH_Super_Omni_Reasoning_V3": ArchitectureInfo(),
    "NemotronH_Omni_Reasoning_V3": ArchitectureInfo(),
    "GraniteMoeHybridForCausalLM": ArchitectureInfo(),
    "FalconH1ForCausalLM": ArchitectureInfo(),
    "Zamba2ForCausalLM": ArchitectureInfo(pipeline_refusal=NO_PIPELINE),
    "BambaForCausalLM": ArchitectureInfo(last=(0, 23, 0), transformers_since=(0, 29, 0)),
    "Plamo2ForCausalLM": ArchitectureInfo(last=(0, 26, 0)),
}
UNIDENTIFIABLE = ("FalconH1", "Zamba2")
_NEMOTRON_SPECULATION: Version = (0, 17, 0)
_SPECULATION: Version = (0, 29, 0)
"""First releases that keep room for draft tokens: Nemotron-H, and the others (0.28 does not, 0.32
does)."""
_NO_ALL_MODE = ("Plamo2",)
_OWN_SSM_DTYPE = ("NemotronHForCausalLM", "NemotronHPuzzleForCausalLM", "NemotronH_Nano_VL_V2")
"""The classes for which vLLM has a hook that reads mamba_ssm_cache_dtype (MODELS_CONFIG_MAP)."""
_REPLAYSSM = ("NemotronHForCausalLM", "NemotronHPuzzleForCausalLM")
_DTYPES = ("auto", "float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Shape:
    """The numbers a Mamba2 state is made of, over all ranks."""

    intermediate: int
    groups: int
    heads: int
    head_dim: int
    state: int
    kernel: int
    speculation: Version
    """First release whose class keeps a row per draft token."""

    def tensors(self, request: StateRequest) -> tuple[StateTensor, ...]:
        """Conv and SSM state of one layer on one rank, and ReplaySSM's rings when asked for."""
        ranks = request.tensor_parallel_size
        drafts = request.num_speculative_tokens if request.version >= self.speculation else 0
        groups = self.groups if self.groups % ranks == 0 else ranks
        width = self.intermediate + 2 * groups * self.state
        conv = StateTensor(
            kind="conv",
            shape=(self.kernel - 1 + drafts, divide(width, ranks)),
            dtype=request.conv_dtype,
            formula="(kernel - 1 + draft tokens) x (intermediate + 2 x groups x state) / TP",
        )
        ssm = StateTensor(
            kind="ssm",
            shape=(divide(self.heads, ranks), self.head_dim, self.state),
            dtype=request.ssm_dtype,
            formula="heads / TP x head dim x state",
        )
        return (conv, ssm, *(self._rings(request) if request.use_replayssm else ()))

    def _rings(self, request: StateRequest) -> tuple[StateTensor, ...]:
        ranks, length = request.tensor_parallel_size, request.replayssm_buffer_len
        heads, groups = divide(self.heads, ranks), divide(self.groups, ranks)
        shapes = (
            ((heads, length, self.head_dim), request.model_dtype, "heads / TP x buffer x head dim"),
            ((heads, length), "float32", "heads / TP x buffer"),
            ((groups, length, self.state), request.model_dtype, "groups / TP x buffer x state"),
        )
        return tuple(
            StateTensor(kind="ring", shape=shape, dtype=dtype, formula=formula)
            for shape, dtype, formula in shapes
        )


def read_recurrent(reader: ConfigReader, architecture: str, layers: int | None) -> RecurrentShape:
    """The Mamba2 layers of a config; each class has its own key names."""
    if architecture.startswith("NemotronH"):
        shape = _nemotron(reader)
    elif architecture.startswith("Zamba2"):
        shape = _zamba(reader)
    elif architecture.startswith("Plamo2"):
        shape = _plamo(reader)
    else:
        shape = _granite(reader, architecture)
    return RecurrentShape(
        num_layers=layers,
        kind=NAME,
        state_tensors=shape.tensors,
        ssm_dtype_defaults=_ssm_dtype(reader) if architecture in _OWN_SSM_DTYPE else (),
        supports_replayssm=architecture in _REPLAYSSM,
        supports_all_mode=not architecture.startswith(_NO_ALL_MODE),
        chunk_size=reader.optional("chunk size", "mamba_chunk_size", "chunk_size"),
    )


def _nemotron(reader: ConfigReader) -> Mamba2Shape:
    heads = reader.integer("Mamba heads", "mamba_num_heads")
    size = reader.integer("Mamba head dim", "mamba_head_dim")
    return Mamba2Shape(
        intermediate=heads * size,
        groups=reader.integer("Mamba groups", "n_groups"),
        heads=heads,
        head_dim=size,
        state=reader.integer("Mamba state", "ssm_state_size"),
        kernel=reader.integer("Mamba conv kernel", "conv_kernel"),
        speculation=_NEMOTRON_SPECULATION,
    )


def _granite(reader: ConfigReader, architecture: str) -> Mamba2Shape:
    heads = reader.integer("Mamba heads", "mamba_n_heads")
    intermediate = _intermediate(reader, architecture)
    size = intermediate // heads if reader.raw("mamba_d_head") == "auto" else None
    return Mamba2Shape(
        intermediate=intermediate,
        groups=reader.integer("Mamba groups", "mamba_n_groups"),
        heads=heads,
        head_dim=size or reader.integer("Mamba head dim", "mamba_d_head"),
        state=reader.integer("Mamba state", "mamba_d_state"),
        kernel=reader.integer("Mamba conv kernel", "mamba_d_conv"),
        speculation=_SPECULATION,
    )


def _intermediate(reader: ConfigReader, architecture: str) -> int:
    """Falcon-H1 has mamba_d_ssm; the others, and Falcon-H1 without it, expand the hidden size."""
    if architecture.startswith("FalconH1"):
        reader.require("Mamba intermediate size", "mamba_d_ssm")
        own = reader.optional("Mamba intermediate size", "mamba_d_ssm")
        if own is not None:
            return own
    return _expanded(reader)


def _expanded(reader: ConfigReader) -> int:
    hidden = reader.integer("hidden size", "hidden_size")
    return int(reader.number("Mamba expansion", "mamba_expand") * hidden)


def _zamba(reader: ConfigReader) -> Mamba2Shape:
    return Mamba2Shape(
        intermediate=_expanded(reader),
        groups=reader.integer("Mamba groups", "mamba_ngroups"),
        heads=reader.integer("Mamba heads", "n_mamba_heads"),
        head_dim=reader.integer("Mamba head dim", "mamba_headdim"),
        state=reader.integer("Mamba state", "mamba_d_state"),
        kernel=reader.integer("Mamba conv kernel", "mamba_d_conv"),
        speculation=_SPECULATION,
    )


def _plamo(reader: ConfigReader) -> Mamba2Shape:
    heads = reader.integer("Mamba heads", "mamba_num_heads")
    size = reader.integer("Mamba head dim", "hidden_size_per_head")
    return Mamba2Shape(
        intermediate=heads * size,
        groups=0,
        heads=heads,
        head_dim=size,
        state=reader.integer("Mamba state", "mamba_d_state"),
        kernel=reader.integer("Mamba conv kernel", "mamba_d_conv"),
        speculation=_SPECULATION,
    )


def _ssm_dtype(reader: ConfigReader) -> tuple[tuple[Version, str | None], ...]:
    """Nemotron-H: the config's word since 0.13; without one float16, from 0.20 float32."""
    dtype = reader.word("mamba_ssm_cache_dtype", _DTYPES)
    if dtype is not None:
        return (((0, 13, 0), None if dtype == "auto" else dtype),)
    return (((0, 13, 0), "float16"), ((0, 20, 0), "float32"))
