"""Model families: which config.json keys give which cache shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hwtune.domain.errors import InputError
from hwtune.domain.model import AttentionShape, ModelShape, RecurrentShape
from hwtune.families import gdn, kda, linear_attention, mamba1, mamba2, short_conv
from hwtune.families.parts import (
    ArchitectureInfo,
    attention_only,
    count_layers,
    read_attention,
    read_max_model_len,
)
from hwtune.families.plain import ATTENTION_FREE, PLAIN_ARCHITECTURES
from hwtune.families.quantisation import checkpoint_kv, quantised_dtypes
from hwtune.families.reader import ConfigReader

ReadRecurrent = Callable[[ConfigReader, str, int | None], RecurrentShape]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family of hybrid models."""

    name: str
    architectures: Mapping[str, ArchitectureInfo]
    read_recurrent: ReadRecurrent
    unidentifiable: tuple[str, ...]
    """Prefixes of architectures whose full-attention layers vLLM cannot name."""


FAMILIES = tuple(
    Family(
        name=module.NAME,
        architectures=module.ARCHITECTURES,
        read_recurrent=module.read_recurrent,
        unidentifiable=module.UNIDENTIFIABLE,
    )
    for module in (gdn, mamba1, mamba2, short_conv, linear_attention, kda)
)
_BY_ARCHITECTURE = {name: family for family in FAMILIES for name in family.architectures}


def read_shape(config: Mapping[str, Any], source: str) -> ModelShape:
    """The cache shape of a config.json.

    Raises:
        InputError: the architecture is unknown, or a key is missing or wrong.
    """
    reader = ConfigReader(config, source)
    architecture = _architecture(reader)
    family = _BY_ARCHITECTURE.get(architecture)
    if family is None:
        return _plain(reader, architecture)
    _require_own(reader, architecture)
    attention_layers, recurrent_layers = _layers(reader, architecture)
    attention = read_attention(
        reader,
        head_keys=_head_keys(architecture),
        default_head_size=_NEMOTRON_HEAD_SIZE if architecture.startswith("NemotronH") else None,
        identifiable=not architecture.startswith(family.unidentifiable),
        layers=attention_layers,
    )
    recurrent = family.read_recurrent(reader, architecture, recurrent_layers)
    return _shape(reader, architecture, family, attention, recurrent)


def _architecture(reader: ConfigReader) -> str:
    names = reader.root.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        message = f"{reader.source}: key 'architectures' must be a list with a class name"
        raise InputError(message)
    return names[0]


def _head_keys(architecture: str) -> tuple[str, ...]:
    if architecture.startswith("Zamba2"):
        return ("attention_head_dim",)
    return ("head_dim", "hidden_size_per_head")


_NEMOTRON_HEAD_SIZE = 128
"""transformers' NemotronHConfig.head_dim; vLLM never reads attention_head_dim."""
_QWEN = ("Qwen3", "Qwen4", "ColQwen3", "InternS2", "MiniCPMV4")
_NEEDED: tuple[tuple[tuple[str, ...], str, tuple[str, ...]], ...] = (
    (("Kimi", "Glm5Next"), "MLA latent size", ("kv_lora_rank",)),
    (
        (*_QWEN, "Jamba", "NemotronH", "FalconH1", "Bamba", "Lfm2", "ColBERTLfm2"),
        "number of KV heads",
        ("num_key_value_heads",),
    ),
    (_QWEN, "head size", ("head_dim",)),
)
"""Prefixes of architectures, and keys for which their configuration class has a value of its own
where config.json has none: nothing that can be guessed from the other keys."""


def _require_own(reader: ConfigReader, architecture: str) -> None:
    for prefixes, name, keys in _NEEDED:
        if architecture.startswith(prefixes):
            reader.require(name, *keys)


def _layers(reader: ConfigReader, architecture: str) -> tuple[int | None, int | None]:
    if architecture.startswith("FalconH1"):
        total = reader.optional("number of layers", "num_hidden_layers")
        return total, total
    if reader.has("index_topk") or architecture.startswith("Qwen4Exp"):
        return None, None  # their indexers and n-gram layers have groups of their own
    return count_layers(reader)


def _shape(
    reader: ConfigReader,
    architecture: str,
    family: Family | None,
    attention: AttentionShape,
    recurrent: RecurrentShape | None,
) -> ModelShape:
    info = family.architectures[architecture] if family else ArchitectureInfo()
    mtp = ("mtp_num_hidden_layers", "num_nextn_predict_layers")
    return ModelShape(
        architecture=architecture,
        family=family.name if family else "plain",
        dtype=reader.dtype(),
        attention=attention,
        recurrent=recurrent,
        max_model_len=read_max_model_len(reader),
        source=reader.source,
        attention_only=attention_only(reader),
        checkpoint_kv=checkpoint_kv(reader),
        quantised=quantised_dtypes(reader, architecture) if family else None,
        first_version=info.first,
        last_version=info.last,
        transformers_since=info.transformers_since,
        pipeline_refusal=info.pipeline_refusal,
        mtp_layers=reader.optional("draft layers", *mtp, minimum=0) or 0,
        num_hidden_layers=reader.optional("number of layers", "num_hidden_layers", "n_layer"),
        keys=dict(reader.keys),
    )


def _plain(reader: ConfigReader, architecture: str) -> ModelShape:
    """A model without recurrent layers, or an error that names the families."""
    if architecture in ATTENTION_FREE:
        none = AttentionShape(num_layers=0, num_heads=0, num_kv_heads=0, head_size=0)
        return _shape(reader, architecture, None, none, None)
    if architecture not in PLAIN_ARCHITECTURES:
        known = "; ".join(f"{f.name}: {', '.join(f.architectures)}" for f in FAMILIES)
        message = (
            f"{reader.source}: architecture '{architecture}' is not known. Hybrid families: {known}"
        )
        raise InputError(message)
    layers = reader.optional("number of layers", "num_hidden_layers", "n_layer", "num_layers")
    return _shape(reader, architecture, None, read_attention(reader, layers=layers), None)
