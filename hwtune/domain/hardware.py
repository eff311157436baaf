"""What an accelerator demands of a page and offers in kernels."""

from __future__ import annotations

from dataclasses import dataclass

from hwtune.domain.deployment import EngineName
from hwtune.domain.kernel import KernelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareProfile:
    """One accelerator, read from ``profiles/hwtune_profiles/<name>.toml``."""

    name: str
    title: str
    device: str
    """Platform in vLLM's words: ``cuda``, ``rocm``, ``npu`` or ``cpu``."""
    engine: EngineName
    default_alignment_tokens: int
    """Granularity of vLLM's own page on this hardware: the default backend's block size."""
    required_alignment_tokens: int
    """Granularity the profile's kernels need, i.e. what hwtune puts into vLLM's calculation."""
    base_backend: str
    """Attention backend that hwtune's own extends, as named in vLLM's registry."""
    kernels: tuple[KernelSpec, ...]
    memory_bytes: int | None
    memory_bandwidth_bytes_per_s: float | None
    sources: dict[str, str]
    """Field name -> where its number comes from (a document, a source file, a measurement)."""
    verified_on_hardware: bool
    """Whether hwtune itself has run on this hardware."""
    notes: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
