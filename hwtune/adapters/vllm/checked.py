"""Checked mode: vLLM's own path computes a share of the hits too, and the outputs are compared.

The request gets the kernel's output where both agree, as in an unchecked server, and vLLM's own
where they do not; then the kernel is out of service in that layer. Comparing waits for the device.
"""

from __future__ import annotations

import torch

from hwtune.domain.checking import SMALLEST_ROW, Difference, refusal
from hwtune.io.check_slots import CheckRow

_LARGEST_RELATIVE = 1e9
"""What a row of zeros is told to be wrong by; infinity has no place in JSON."""


class KernelDiffersError(Exception):
    """A kernel's output is not what vLLM's own path computes."""


class HitCheck:
    """Checks one kernel in one layer."""

    def __init__(self, layer: str, rate: float, tolerance: float, row: CheckRow) -> None:
        self._layer = layer
        self._rate = rate
        self._tolerance = tolerance
        self._row = row
        self._credit = 1.0  # the first hit is always checked

    def due(self) -> bool:
        """Whether this hit is one of the share to check; call it once per hit."""
        due = self._credit >= 1.0
        self._credit += self._rate - due
        return due

    def compare(
        self, ours: torch.Tensor, theirs: torch.Tensor, query_len: int, context_len: int
    ) -> None:
        """Records one checked call.

        Args:
            ours: the kernel's output, ``[tokens, heads, head_size]``.
            theirs: that of vLLM's own path, same shape.
            query_len: tokens, for the record of the worst call.
            context_len: tokens, likewise.

        Raises:
            KernelDiffersError: the outputs differ; says where and by how much.
        """
        difference = difference_of(ours, theirs)
        reason = refusal(difference, self._tolerance)
        self._row.record(difference, query_len, context_len, failed=reason is not None)
        if reason is not None:
            message = (
                f"{reason} (layer {self._layer}, query {query_len}, context {context_len}, "
                f"absolute {difference.absolute:.3g}); the request got vLLM's own output"
            )
            raise KernelDiffersError(message)


def difference_of(ours: torch.Tensor, theirs: torch.Tensor) -> Difference:
    """Both ``[tokens, heads, head_size]``; one synchronisation with the device."""
    a = ours.flatten(0, 1).float()
    b = theirs.flatten(0, 1).float()
    both = torch.isfinite(a) & torch.isfinite(b)
    strange = ~both & ~((a == b) | (torch.isnan(a) & torch.isnan(b)))
    errors = torch.where(both, (a - b).abs(), 0.0).amax(dim=-1)
    sizes = torch.where(both, b.abs(), 0.0).amax(dim=-1)
    floor = (sizes.amax() * SMALLEST_ROW).clamp_min(torch.finfo(torch.float32).tiny)
    relative = (errors / sizes.clamp_min(floor)).amax().clamp_max(_LARGEST_RELATIVE)
    found = torch.stack([errors.amax().double(), relative.double(), strange.sum().double()])
    absolute, largest, non_finite = found.tolist()
    return Difference(absolute=absolute, relative=largest, non_finite=int(non_finite))
