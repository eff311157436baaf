"""Gated DeltaNet: Qwen3-Next, Qwen3.5 and relatives, OLMo-hybrid, Qwen4-Exp.

Source: vLLM model_executor/layers/mamba/mamba_utils.py gated_delta_net_state_shape and
model_executor/models/{qwen3_next,qwen3_5,olmo_hybrid}.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hwtune.domain.model import RecurrentShape, StateRequest, StateTensor
from hwtune.domain.page_rules_versions import Version
from hwtune.families.parts import ArchitectureInfo, divide
from hwtune.families.reader import ConfigReader

NAME = "gdn"
_QWEN35 = ArchitectureInfo(first=(0, 17, 0))
_QWEN4 = ArchitectureInfo(
    first=(0, 29, 0),
    pipeline_refusal=(
        "Qwen4Exp N-gram PLE embedding requires pipeline_parallel_size=1 because non-first pipeline "
        "ranks do not receive the raw input_ids it needs. Please run with PP=1."
    ),
)
ARCHITECTURES = {
    "Qwen3NextForCausalLM": ArchitectureInfo(first=(0, 10, 2)),
    "Qwen3_5ForCausalLM": _QWEN35,
    "Qwen3_5MoeForCausalLM": _QWEN35,
    "Qwen3_5ForConditionalGeneration": _QWEN35,
    "Qwen3_5MoeForConditionalGeneration": _QWEN35,
    "OlmoHybridForCausalLM": ArchitectureInfo(),
    "MiniCPMV4_6ForConditionalGeneration": ArchitectureInfo(),
    "MiniCPMV4_7ForConditionalGeneration": ArchitectureInfo(),
    "InternS2PreviewForConditionalGeneration": ArchitectureInfo(),
    "InternS2MobiusForConditionalGeneration": ArchitectureInfo(),
    "ColQwen3_5": ArchitectureInfo(),
    "Qwen4ExpForCausalLM": _QWEN4,
    "Qwen4ExpForConditionalGeneration": _QWEN4,
}
_OWN_SSM_DTYPE = ("Qwen3_5", "Qwen4Exp", "ColQwen3_5")
"""Prefixes of the classes for which vLLM has a hook that reads mamba_ssm_dtype (MODELS_CONFIG_MAP)."""
_TEXT_ONLY_FORGOTTEN: Version = (0, 20, 0)
_TEXT_ONLY_HOOK: Version = (0, 24, 0)
"""Between these two the hook takes Qwen3.5 with its vision part only: 0.23.0 runs the text-only class
without it, 0.28.0 with it, and 0.18.1 cannot load it at all."""
_DTYPES = ("auto", "float32", "float16", "bfloat16")
_NO_SPECULATION_BEFORE: Version = (0, 10, 2)
_KINDS = "layer_types"
_LINEAR = "linear_attention"
_LAYER_TYPES = (_LINEAR, "full_attention", "attention", "sliding_attention")
UNIDENTIFIABLE = ("Qwen4Exp",)


@dataclass(frozen=True, slots=True, kw_only=True)
class GdnShape:
    """The numbers a GDN state is made of, over all ranks."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    def tensors(self, request: StateRequest) -> tuple[StateTensor, ...]:
        """Conv and recurrent state of one layer on one rank."""
        ranks = request.tensor_parallel_size
        drafts = request.num_speculative_tokens if request.version >= _NO_SPECULATION_BEFORE else 0
        width = 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
        conv = StateTensor(
            kind="conv",
            shape=(self.kernel - 1 + drafts, divide(width, ranks)),
            dtype=request.conv_dtype,
            formula="(kernel - 1 + draft tokens) x (2 x key heads x key dim + value heads x value dim) / TP",
        )
        heads = divide(self.value_heads, ranks)
        ssm = StateTensor(
            kind="ssm",
            shape=(heads, self.value_dim, self.key_dim),
            dtype=request.ssm_dtype,
            formula="value heads / TP x value dim x key dim",
        )
        return conv, ssm


def read_recurrent(reader: ConfigReader, architecture: str, layers: int | None) -> RecurrentShape:
    """The GDN layers of a config."""
    _check_layer_types(reader)
    shape = GdnShape(
        key_heads=reader.integer("GDN key heads", "linear_num_key_heads"),
        value_heads=reader.integer("GDN value heads", "linear_num_value_heads"),
        key_dim=reader.integer("GDN key dim", "linear_key_head_dim"),
        value_dim=reader.integer("GDN value dim", "linear_value_head_dim"),
        kernel=reader.integer("GDN conv kernel", "linear_conv_kernel_dim"),
    )
    tensors: Callable[[StateRequest], tuple[StateTensor, ...]] = shape.tensors
    if architecture.startswith("Qwen4Exp"):
        tensors = _with_ple(reader, shape)
    return RecurrentShape(
        num_layers=layers,
        kind=NAME,
        state_tensors=tensors,
        ssm_dtype_defaults=_ssm_dtype(reader, architecture),
    )


def _check_layer_types(reader: ConfigReader) -> None:
    """Raises InputError for a list of layers that no model of the family can have.

    A list of attention layers only is a case of its own: see ``attention_only``.
    """
    words = reader.words(_KINDS)
    if words is None:
        return
    unknown = next((word for word in words if word not in _LAYER_TYPES), None)
    if unknown is not None:
        known = ", ".join(_LAYER_TYPES)
        raise reader.fail(_KINDS, f"has {unknown[:40]!r}; known: {known}")
    if all(word == _LINEAR for word in words):
        raise reader.fail(_KINDS, "names no attention layer, so there is no page to derive")
    total = reader.optional("number of layers", "num_hidden_layers")
    if total is not None and total != len(words):
        problem = f"has {len(words)} entries, and num_hidden_layers is {total}"
        raise reader.fail(_KINDS, problem)


def _ssm_dtype(reader: ConfigReader, architecture: str) -> tuple[tuple[Version, str | None], ...]:
    """Qwen3.5 honours the config's mamba_ssm_dtype; Qwen3-Next and other wrappers do not."""
    if not architecture.startswith(_OWN_SSM_DTYPE):
        return ()
    dtype = reader.word("mamba_ssm_dtype", _DTYPES)
    own = None if dtype == "auto" else dtype
    if architecture.startswith("Qwen3_5") and architecture.endswith("ForCausalLM"):
        return (((0, 0, 0), own), (_TEXT_ONLY_FORGOTTEN, None), (_TEXT_ONLY_HOOK, own))
    return (((0, 0, 0), own),)


def _with_ple(
    reader: ConfigReader, shape: GdnShape
) -> Callable[[StateRequest], tuple[StateTensor, ...]]:
    """Qwen4-Exp has a second state layout, not divided by TP; the larger of the two counts."""
    kernel = reader.integer("PLE conv kernel", "ple_conv_kernel_size")
    ngram = reader.integer("n-gram size", "ngram_size")
    width = reader.integer("hidden size", "hidden_size") * reader.integer("hc count", "hc_count")

    def tensors(request: StateRequest) -> tuple[StateTensor, ...]:
        gdn = shape.tensors(request)
        ple = StateTensor(
            kind="conv",
            shape=((kernel - 1) * ngram + request.num_speculative_tokens, width),
            dtype=request.conv_dtype,
            formula="((PLE kernel - 1) x n-gram size + draft tokens) x hidden size x hc count",
        )
        return (ple,) if ple.size_bytes > sum(t.size_bytes for t in gdn) else gdn

    return tensors
