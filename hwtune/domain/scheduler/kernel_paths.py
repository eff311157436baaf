"""Which of a profile's kernels takes a step, and why the others do not.

The conditions are judged by the functions that the plugin inside vLLM calls
(:mod:`hwtune.domain.kernel`), so prediction and dispatch cannot disagree about a shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hwtune.domain.kernel import (
    OBSERVED_ONLY,
    CallShape,
    KernelSpec,
    LayerTraits,
    call_refusal,
    is_verification,
    static_refusal,
)
from hwtune.domain.scheduler.classify import BatchRow

KernelPhase = Literal["prefill", "decode", "any"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the kernels do with one attention call."""

    taken_by: str | None
    """None: vLLM's own path."""
    reasons: tuple[str | None, ...]
    """Per kernel in the profile's order: why it does not take the call; None for the one that does."""


class KernelPaths:
    """The kernels of a profile bound to one kind of attention layer."""

    def __init__(
        self,
        kernels: Sequence[KernelSpec],
        layer: LayerTraits,
        *,
        observed: bool = False,
        speculative_tokens: int = 0,
    ) -> None:
        self.kernels = tuple(kernels)
        self._observed = observed
        """As in the baseline arm: kernels are watched and never taken."""
        self._speculative_tokens = speculative_tokens
        """Most drafts per request."""
        self.static = tuple(static_refusal(spec.when, layer) for spec in kernels)
        """Why a kernel can never take this layer; None when it can."""

    def step(self, rows: Sequence[BatchRow], later_steps: int = 0) -> Outcome:
        """What happens to a step, or to the one ``later_steps`` after it in a run of decodes."""
        return self.outcome(call_shape(rows, later_steps, self._speculative_tokens))

    def outcome(self, call: CallShape) -> Outcome:
        """The first kernel that takes the call wins, as in the plugin's dispatch."""
        taken: str | None = None
        reasons: list[str | None] = []
        for spec, refusal in zip(self.kernels, self.static, strict=True):
            reason = refusal or call_refusal(spec.when, call)
            if reason is None and self._observed:
                reason = OBSERVED_ONLY
            elif reason is None and taken is not None:
                reason = f"taken by {taken}"
            elif reason is None:
                taken = spec.name
            reasons.append(reason)
        return Outcome(taken_by=taken, reasons=tuple(reasons))


def call_shape(
    rows: Sequence[BatchRow], later_steps: int = 0, speculative_tokens: int = 0
) -> CallShape:
    """The attention call of a step, or of the step ``later_steps`` after it in a run of decodes."""
    longest = max(row[0] for row in rows)
    return CallShape(
        num_sequences=len(rows),
        num_tokens=sum(row[0] for row in rows),
        max_query_len=longest,
        context_len=max(row[0] + row[1] for row in rows) + later_steps,
        verification=speculative_tokens > 0
        and is_verification(longest, speculative_tokens, any(row[1] < row[3] for row in rows)),
    )


def kernel_phase(spec: KernelSpec) -> KernelPhase:
    """The steps a kernel is made for: those with prompt work, those without, or all."""
    if spec.when.min_query_len > 1:
        return "prefill"
    return "decode" if spec.when.max_query_len == 1 else "any"


def has_prefill(rows: Sequence[BatchRow]) -> bool:
    """Whether a step computes part of a prompt, or again what a preempted request had."""
    return any(row[1] < row[3] or row[0] - row[2] > 1 for row in rows)
