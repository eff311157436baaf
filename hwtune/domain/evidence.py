"""What was seen of a server: facts, each with the place it was seen at, and counted calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KernelOutcome = Literal["hit", "fallback", "captured", "fault"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCount:
    """Calls that one process counted for one kernel with one outcome and reason."""

    process: int
    """Process id of the vLLM process that counted."""
    nonce: str
    """Nonce of the plan the process ran under; counts of another run are no evidence."""
    kernel: str
    outcome: KernelOutcome
    """``hit``: the kernel computed the call. ``captured``: called while a graph was recorded.
    ``fallback``: vLLM's own path took the call. ``fault``: our code raised, vLLM's path served."""
    reason: str
    """Why it fell back or failed; empty for hits."""
    calls: int
