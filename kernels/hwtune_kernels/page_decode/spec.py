"""What page_decode accepts and how it is tuned. Data and arithmetic only: imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hwtune_kernels.tuning import tuning_from

HEAD_SIZES = (64, 128, 256)
"""The head dimension is one tile wide, so it must be a power of two; these are tested."""
MAX_ROWS = 64
"""Query tokens times query heads per KV head: the rows of one program's score tile."""
LARGEST_TILE_TOKENS = 64
EXACT_TILE_TOKENS = 16
EXACT_SEGMENTS = 16
"""vLLM 0.32 triton_attn.py NUM_PAR_SOFTMAX_SEGMENTS; triton_unified_attention.py _get_tile_size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Launch constants of one target. They live in the hardware profile, not here."""

    tile_tokens: int = 32
    """Upper bound; the tile used is the largest power of two that divides the page, up to this."""
    num_warps: int = 4
    num_stages: int = 2
    programs: int = 512
    """Programs that fill the device. A sequence is cut into segments until there are as many."""
    max_segments: int = 64

    @property
    def options(self) -> dict[str, int]:
        """What the launch is told."""
        return {"num_warps": self.num_warps, "num_stages": self.num_stages}

    def segments_of(self, num_sequences: int, num_kv_heads: int) -> int:
        """Parts each sequence is cut into: a power of two that depends on the batch alone.

        Never on a length, so that a captured graph may be replayed for any lengths.
        """
        wanted = self.programs // max(1, num_sequences * num_kv_heads)
        return min(self.max_segments, 1 << max(0, wanted.bit_length() - 1))


def tuning_of(values: Mapping[str, int]) -> Tuning:
    """A profile's ``[kernels.tuning]`` table.

    Raises:
        ValueError: an unknown key or a value that the kernel cannot be launched with.
    """
    tuning = tuning_from(Tuning, values, ("tile_tokens", "num_warps", "max_segments"))
    if not EXACT_TILE_TOKENS <= tuning.tile_tokens <= LARGEST_TILE_TOKENS:
        message = f"tuning tile_tokens must be 16, 32 or 64, not {tuning.tile_tokens}"
        raise ValueError(message)
    return tuning


def rows_of(query_len: int, group: int) -> int:
    """Rows of the score tile: query tokens times heads per KV head, at least 16, a power of two."""
    return max(16, 1 << (query_len * group - 1).bit_length())


def refusal(
    *,
    query_len: int,
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    block_size: int,
    exact: bool = False,
    has_extras: bool = False,
) -> str | None:
    """Why the kernel cannot compute this, or None when it can.

    ``has_extras``: a sliding window, sinks, a soft cap or an FP8 cache.
    """
    checks = (
        (head_size not in HEAD_SIZES, f"head size {head_size}, not one of {HEAD_SIZES}"),
        (
            num_kv_heads < 1 or num_heads % num_kv_heads != 0,
            f"{num_heads} query heads do not divide among {num_kv_heads} KV heads",
        ),
        (
            block_size < EXACT_TILE_TOKENS or block_size % EXACT_TILE_TOKENS != 0,
            f"page {block_size} is not a multiple of {EXACT_TILE_TOKENS}",
        ),
        (query_len < 1, f"{query_len} query tokens"),
        (
            query_len * num_heads > MAX_ROWS * num_kv_heads,
            f"{query_len} query tokens of {num_heads}/{num_kv_heads} heads: over {MAX_ROWS} rows",
        ),
        (exact and query_len != 1, "exact mode takes one query token"),
        (exact and has_extras, "exact mode takes no window, sinks, soft cap or FP8 cache"),
    )
    return next((reason for refused, reason in checks if refused), None)
