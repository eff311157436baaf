"""What tiled_prefill accepts and how it is tuned. Data and arithmetic only: imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hwtune_kernels.tuning import tuning_from

HEAD_SIZES = (64, 128, 256)
"""The head dimension is one tile wide, so it must be a power of two; these are tested."""
SMALLEST_PAGE_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Launch constants of one target. They live in the hardware profile, not here."""

    rows: int = 128
    """Rows of a program's tile: query tokens times the query heads of a KV head."""
    tile_tokens: int = 16
    """Upper bound; the tile used is the largest power of two that divides the page, up to this."""
    peel: int = 0
    """1: tiles on the diagonal have a loop of their own, and the other loop no masks. 0: one loop
    with masks, which needs fewer registers: at 128 rows and head size 256 the other spills."""
    num_warps: int = 8
    num_stages: int = 2

    @property
    def options(self) -> dict[str, int]:
        """What the launch is told."""
        return {"num_warps": self.num_warps, "num_stages": self.num_stages}


def tuning_of(values: Mapping[str, int]) -> Tuning:
    """A profile's ``[kernels.tuning]`` table.

    Raises:
        ValueError: an unknown key or a value that the kernel cannot be launched with.
    """
    tuning = tuning_from(Tuning, values, ("rows", "tile_tokens", "num_warps"), ("peel",))
    if not 16 <= tuning.rows <= 256 or not 16 <= tuning.tile_tokens <= 128:
        message = f"tuning out of range (16 to 256 rows, 16 to 128 tile_tokens): {tuning}"
        raise ValueError(message)
    return tuning


def refusal(
    *, num_heads: int, num_kv_heads: int, head_size: int, block_size: int, rows: int
) -> str | None:
    """Why the kernel cannot compute this, or None when it can."""
    checks = (
        (head_size not in HEAD_SIZES, f"head size {head_size}, not one of {HEAD_SIZES}"),
        (
            num_kv_heads < 1 or num_heads % num_kv_heads != 0,
            f"{num_heads} query heads do not divide among {num_kv_heads} KV heads",
        ),
        (
            block_size < SMALLEST_PAGE_TOKENS or block_size % SMALLEST_PAGE_TOKENS != 0,
            f"page {block_size} is not a multiple of {SMALLEST_PAGE_TOKENS}",
        ),
        (
            num_heads > rows * num_kv_heads,
            f"{num_heads} query heads of {num_kv_heads} KV heads do not fit into {rows} rows",
        ),
    )
    return next((reason for refused, reason in checks if refused), None)
