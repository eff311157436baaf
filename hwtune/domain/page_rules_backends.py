"""Kernel block sizes that attention backends declare, by vLLM release.

Sources: ``get_supported_kernel_block_sizes``, ``supports_block_size`` and
``get_preferred_block_size`` of the backends in vLLM's wheels (``v1/attention/backends``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import lcm

from hwtune.domain.errors import InputError
from hwtune.domain.page_rules_versions import ALL_BACKENDS_CONSIDERED, BACKEND_PACKS, Rule, Version
from hwtune.domain.page_steps import EngineRefusalError

DEFAULT_BLOCK_SIZE = 16
"""Tokens; vLLM's CacheConfig.DEFAULT_BLOCK_SIZE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSizes:
    """What one attention backend accepts as block size, in tokens."""

    name: str
    exact: tuple[int, ...] = ()
    """Kernel block sizes; a page may be any multiple of one of them."""
    multiple_of: tuple[int, ...] = ()
    """Any multiple of one of these."""
    preferred: int | None = None
    """The size the backend asks for when it is not vLLM's default."""
    exact_pages_only: bool = False
    """The page itself must be one of ``exact``."""

    @property
    def smallest(self) -> int:
        """The smallest declared size."""
        return min(self.exact + self.multiple_of, default=1)

    def supports(self, block_size: int) -> bool:
        """Whether a page of that many tokens can be cut into the backend's kernel blocks."""
        if self.exact_pages_only:
            return block_size in self.exact
        sizes = self.exact + self.multiple_of
        return not sizes or any(block_size % size == 0 for size in sizes)

    def preferred_block(self, default: int) -> int:
        """The block size used when the user names none."""
        if self.preferred is not None:
            return self.preferred
        return default if self.supports(default) else self.smallest

    def declared(self) -> str:
        """The sizes as vLLM prints them."""
        texts = [str(size) for size in self.exact]
        texts += [f"MultipleOf({size})" for size in self.multiple_of]
        return f"[{', '.join(texts)}]"


_UNNAMED = "the backend"


def multiples_of(tokens: int) -> BackendSizes:
    """A backend that accepts multiples of ``tokens``, as hwtune's own declares."""
    return BackendSizes(name=_UNNAMED, multiple_of=(tokens,))


def _any(name: str, tokens: int, preferred: int | None = None) -> BackendSizes:
    return BackendSizes(name=name, multiple_of=(tokens,), preferred=preferred)


def _one_of(name: str, *sizes: int, preferred: int | None = None) -> BackendSizes:
    return BackendSizes(name=name, exact=sizes, preferred=preferred)


_NEWEST_SIZES = {
    sizes.name: sizes
    for sizes in (
        _any("FLASH_ATTN", 16),
        _one_of("FLASHINFER", 16, 32, 64),
        _any("TRITON_ATTN", 16),
        _any("ROCM_ATTN", 16),
        _one_of("ROCM_AITER_FA", 16, 32),
        _any("ROCM_AITER_UNIFIED_ATTN", 16, preferred=64),
        _any("ROCM_OCTAVE", 16),
        _any("CPU_ATTN", 32),
        _any("FLEX_ATTENTION", 16),
        _any("TREE_ATTN", 16),
        _one_of("TURBOQUANT", 16, 32, 64, 128),
        _one_of("ULTRAQUANT", 16, 32, 64, 128, preferred=64),
        _one_of("HPC_ATTN", 64),
        BackendSizes(name="B12X", exact=(64, 128), preferred=128, exact_pages_only=True),
        _any("TRITON_MLA", 16),
        _any("FLASH_ATTN_MLA", 16),
        _one_of("FLASHMLA", 64),
        _one_of("CUTLASS_MLA", 128),
        _one_of("FLASHINFER_MLA", 32, 64),
        _one_of("TOKENSPEED_MLA", 32, 64),
        _any("ROCM_AITER_MLA", 1),
        BackendSizes(name="CPU_MLA", exact=(16,), exact_pages_only=True),
        _any("AMX_MLA", 32),
        _any("FLASHMLA_SPARSE", 64),
        _any("FLASHINFER_MLA_SPARSE", 32),
        _any("FLASH_ATTN_MLA_SPARSE", 64),
        BackendSizes(name="ROCM_AITER_MLA_SPARSE", exact=(1,), multiple_of=(16,)),
        _any("XPU_MLA_SPARSE", 1),
        _one_of("ASCEND", 128),
    )
}
_OLDER_SIZES: tuple[tuple[Version, BackendSizes], ...] = (
    ((0, 29, 0), _any("CPU_ATTN", 16)),
    ((0, 19, 0), _any("ROCM_AITER_UNIFIED_ATTN", 16)),
)
"""(first release that no longer has it, sizes)."""
_PACKERS = (
    ("turboquant_", "TURBOQUANT"),
    ("ultraquant_", "ULTRAQUANT"),
    ("nvfp4", "FLASHINFER"),
    ("", "TRITON_ATTN"),
)
"""(start of a packed KV-cache dtype, the one backend that packs it); the last: per_token_head."""
_STUB = re.compile(r"STUB_(M?)(\d{1,6})")
_STUBS = {
    "STUB_NONE": _any("STUB_NONE", 1),
    "STUB_FLASHINFER": _one_of("STUB_FLASHINFER", 16, 32, 64),
    "STUB_FLASHINFER_BIG": _one_of("STUB_FLASHINFER_BIG", 16, 32, 64, 128, 256, 512, 1024),
    "STUB_CUTLASS_MLA": _one_of("STUB_CUTLASS_MLA", 128),
    "STUB_FLASHINFER_MLA": _one_of("STUB_FLASHINFER_MLA", 32, 64),
}


def backend_sizes(name: str, version: Version) -> BackendSizes:
    """The sizes of a backend by vLLM's name, or of a stub such as ``STUB_M64``.

    Raises:
        InputError: no backend of that name is known.
    """
    for until, sizes in _OLDER_SIZES:
        if sizes.name == name and version < until:
            return sizes
    known = _NEWEST_SIZES.get(name) or _STUBS.get(name)
    if known is not None:
        return known
    stub = _STUB.fullmatch(name)
    if stub is None or int(stub[2]) == 0:
        message = f"attention backend {name!r} is not known; known: {', '.join(_NEWEST_SIZES)}"
        raise InputError(message)
    size = int(stub[2])
    return replace(_any(name, size) if stub[1] else _one_of(name, size))


def packs(backend: BackendSizes | None, kind: str, version: Version) -> bool:
    """Whether the backend lays a packed KV-cache dtype out as such; one that is not named does."""
    if backend is None or backend.name == _UNNAMED or not BACKEND_PACKS.holds(version):
        return True
    return backend.name == next(name for start, name in _PACKERS if kind.startswith(start))


def starting_block(backends: Sequence[BackendSizes], rule: Rule) -> int:
    """The block size, in tokens, that vLLM starts from when the user names none.

    Source: platforms/interface.py Platform._preferred_block_size_for_backends (0.31 and later),
    the first backend alone before.

    Raises:
        EngineRefusalError: the backends share no size.
    """
    if len(backends) == 1 or not ALL_BACKENDS_CONSIDERED.holds(rule.version):
        return backends[0].preferred_block(DEFAULT_BLOCK_SIZE)
    if _all_support(backends, DEFAULT_BLOCK_SIZE):
        return DEFAULT_BLOCK_SIZE
    choices = [backend.exact + backend.multiple_of or (1,) for backend in backends]
    candidates = sorted({lcm(*sizes) for sizes in product(*choices)})
    found = next((size for size in candidates if _all_support(backends, size)), None)
    if found is None:
        listed = "; ".join(f"{backend.name}: {backend.declared()}" for backend in backends)
        message = f"The attention backends share no supported KV cache block size ({listed})."
        raise EngineRefusalError(message, error_class="ValueError")
    return found


def _all_support(backends: Sequence[BackendSizes], block_size: int) -> bool:
    return all(backend.supports(block_size) for backend in backends)
