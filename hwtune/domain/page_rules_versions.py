"""vLLM's releases and what each of them changed in the page rule, as data.

Sources: the published wheels of vLLM 0.9.0 to 0.33.0, module and function named per feature.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hwtune.domain.errors import InfeasibleError, InputError

Version = tuple[int, int, int]

NEWEST: Version = (0, 33, 0)
"""The newest release whose rule is known."""
NEWEST_ASCEND: Version = (0, 22, 1)
"""The newest vllm-ascend release whose rule is known."""

_VERSION_TEXT = re.compile(
    r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,6}))?"
    r"(?:[.\-_]?(?:a|b|rc|post|dev)\d*)*(?:[+\-][0-9A-Za-z][0-9A-Za-z.\-_]*)?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One change of the rule: true in releases ``since <= version < until``."""

    since: Version
    until: Version | None = None
    source: str

    def holds(self, version: Version) -> bool:
        """Whether the feature is part of that release's rule."""
        return self.since <= version and (self.until is None or version < self.until)


_CONFIG = "model_executor/models/config.py HybridAttentionMambaModelConfig"
_MAMBA = "model_executor/models/config.py MambaModelConfig"
_PLATFORM = "platforms/interface.py Platform._align_hybrid_block_size"
_UPDATE = "platforms/interface.py Platform.update_block_size_for_backend"

RULE_IN_CONFIG = Feature(since=(0, 10, 0), until=(0, 20, 0), source=_CONFIG)
RULE_IN_PLATFORM = Feature(since=(0, 20, 0), source=_PLATFORM)
STATE_IN_KV_DTYPE = Feature(since=(0, 9, 2), until=(0, 10, 1), source=_CONFIG)
PREFIX_CACHING_FORCED_OFF = Feature(since=(0, 10, 2), until=(0, 11, 1), source=_MAMBA)
MLA_COUNTED_TWICE = Feature(since=(0, 11, 0), until=(0, 11, 1), source=_CONFIG)
MLA_ALIGNMENT_64 = Feature(since=(0, 11, 1), until=(0, 20, 0), source=_CONFIG)
BLACKWELL_ALIGNMENT_32 = Feature(since=(0, 11, 1), until=(0, 18, 0), source=_CONFIG)
MAMBA_BLOCK_SIZE_FLAG = Feature(since=(0, 11, 1), source="config/vllm.py VllmConfig")
ALL_MODE_WITHOUT_NAME = Feature(since=(0, 11, 1), until=(0, 15, 0), source=_MAMBA)
MAMBA_CACHE_MODE = Feature(since=(0, 15, 0), source=_MAMBA)
ALL_MODE_BY_DEFAULT = Feature(since=(0, 15, 0), until=(0, 28, 0), source=_MAMBA)
ALL_MODE = Feature(since=(0, 11, 1), until=(0, 32, 0), source="config/cache.py CacheConfig")
ALIGN_WHEN_DRAFTING = Feature(since=(0, 20, 0), until=(0, 22, 0), source=_MAMBA)
PREFIX_CACHING_DEFAULT_ON = Feature(since=(0, 26, 0), source="engine/arg_utils.py EngineArgs")
BLOCK_WITHIN_TOKEN_BUDGET = Feature(
    since=(0, 17, 0), until=(0, 27, 0), source="config/vllm.py VllmConfig"
)
TURBOQUANT_REFUSED = Feature(
    since=(0, 20, 0), until=(0, 21, 0), source="engine/arg_utils.py EngineArgs"
)
CPU_WITHOUT_RULE = Feature(
    since=(0, 20, 0), until=(0, 21, 0), source="platforms/cpu.py CpuPlatform"
)
CPU_FLOAT32_STATE = Feature(
    since=(0, 28, 0), source="platforms/cpu.py CpuPlatform.check_and_update_config"
)
"""Read in 0.28.0 (where AMX decides) and in 0.32.0 (where AVX-512 BF16 does)."""
CPU_BLOCK_WRITTEN_BACK = Feature(
    since=(0, 18, 0),
    until=(0, 20, 0),
    source="platforms/cpu.py CpuPlatform.check_and_update_config",
)
SKIP_LAYER_PHASE = Feature(
    since=(0, 25, 0), source="platforms/interface.py Platform._align_heterogeneous_kv_block_size"
)
CPU_MLA_WITHOUT_CACHING = Feature(
    since=(0, 28, 0), source="platforms/cpu.py CpuPlatform.check_and_update_config"
)
"""Read in 0.23.0 (not yet) and in 0.28.0."""
REPLAYSSM = Feature(since=(0, 27, 0), source="config/cache.py CacheConfig")
REPLAYSSM_WITH_DRAFTS = Feature(since=(0, 29, 0), source="config/vllm.py VllmConfig")
"""Read in 0.28.0 (not yet) and in 0.32.0."""
BACKEND_PACKS = Feature(since=(0, 28, 0), source="AttentionBackend.customize_spec")
MLA_ALIGNMENT_128 = Feature(since=(0, 27, 0), source=_PLATFORM)
KDA_DTYPE_CHECK = Feature(
    since=(0, 30, 0), source="model_executor/layers/mamba/mamba_utils.py kda_state_dtype"
)
ALL_BACKENDS_CONSIDERED = Feature(since=(0, 31, 0), source=_UPDATE)
BACKEND_MULTIPLE = Feature(since=(0, 32, 0), source=_PLATFORM)
ALIGNED_SIZE_CHECK = Feature(
    since=(0, 32, 0), source="platforms/interface.py Platform._check_aligned_block_size"
)
CHECKPOINT_ALIGNMENT = Feature(since=(0, 33, 0), source=_PLATFORM)
GROUPED_ONLY_TOP_LEVEL = Feature(since=(0, 11, 1), source="config/model.py ModelConfig.is_hybrid")
FULL_ATTENTION_ONLY_IS_PLAIN = Feature(
    since=(0, 29, 0), source="config/model.py ModelConfig.is_hybrid"
)


def parse_version(text: str) -> Version:
    """The base release of a version: ``0.18.1+das.dtk2604`` is 0.18.1, ``v0.11.0rc1`` is 0.11.0.

    Raises:
        InputError: the text is not a version.
    """
    match = _VERSION_TEXT.fullmatch(text.strip())
    if match is None:
        message = f"version {text!r}: expected something like 0.32.0 or 0.18.1+das.dtk2604"
        raise InputError(message)
    major, minor, patch = match.group(1, 2, 3)
    return (int(major), int(minor), int(patch or 0))


def version_text(version: Version) -> str:
    """``0.32.0``."""
    return ".".join(map(str, version))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The rule that a version follows."""

    version: Version
    """Release whose rule is applied."""
    name: str
    """E.g. ``vllm-0.32``."""
    notes: tuple[str, ...] = ()

    def source(self, feature: Feature) -> str:
        """Where this release has the feature's code."""
        return self.source_of(feature.source)

    def source_of(self, place: str) -> str:
        """The place with the engine and release in front."""
        return f"{self.name} {place}"


def select_rule(engine: str, text: str | None) -> Rule:
    """The rule of a release; newer ones than known follow the newest known, and say so.

    Raises:
        InputError: the text is not a version.
        InfeasibleError: the release is older than the first rule for hybrid models.
    """
    newest = NEWEST if engine == "vllm" else NEWEST_ASCEND
    if text is None:
        return _rule(engine, newest, ())
    version = parse_version(text)
    oldest = (0, 9, 2) if engine == "vllm" else (0, 10, 2)
    if version < oldest:
        message = (
            f"{engine} {text} has no page rule for hybrid models on the V1 engine; the first is in "
            f"{version_text(oldest)}"
        )
        raise InfeasibleError(message)
    notes = []
    if version > newest:
        notes.append(
            f"{engine} {text} is newer than the newest rule known here; used {version_text(newest)}"
        )
    elif text.strip().removeprefix("v") != version_text(version):
        notes.append(f"{text} taken as its base release {version_text(version)}")
    return _rule(engine, min(version, newest), tuple(notes))


def _rule(engine: str, version: Version, notes: tuple[str, ...]) -> Rule:
    return Rule(version=version, name=f"{engine}-{version[0]}.{version[1]}", notes=notes)
