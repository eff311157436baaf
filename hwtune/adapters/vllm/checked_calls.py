"""What an attention layer does with a checked call: see :mod:`hwtune.adapters.vllm.checked`."""

from __future__ import annotations

from typing import Any

import torch

from hwtune.adapters.vllm.dispatch import BoundKernel
from hwtune.adapters.vllm.runtime import count_fault


class UncheckableError(Exception):
    """vLLM's own path raised where it ran only to check a hit."""


class CheckedCalls:
    """Mixed into a backend's impl; a checked call's kernel output waits in ``kernel.pending``."""

    def judge(
        self, kernel: BoundKernel, kv_cache: torch.Tensor, metadata: Any, output: torch.Tensor
    ) -> None:
        """``output`` holds vLLM's own result; the kernel's replaces it where both agree."""
        ours, kernel.pending = kernel.pending, None
        try:
            theirs = self.written(metadata, output)
            context_len = self.context_len(metadata)
            kernel.check.compare(ours, theirs, metadata.max_query_len, context_len)
            self.count(kernel, kv_cache, metadata, capturing=False)
            theirs.copy_(ours)
        except Exception as error:
            kernel.retire(error)
            count_fault(error, kernel.name)

    def serve_unchecked(
        self, kernel: BoundKernel, metadata: Any, output: torch.Tensor, error: Exception
    ) -> None:
        """The hit stands, as it would have unchecked; nothing more is checked in this layer."""
        ours, kernel.pending, kernel.check = kernel.pending, None, None
        self.written(metadata, output).copy_(ours)
        kernel.count_hit(capturing=False)
        message = f"vLLM's own path raised beside a hit: {type(error).__name__}: {error}"
        count_fault(UncheckableError(message), kernel.name)

    def written(self, metadata: Any, output: torch.Tensor) -> torch.Tensor:
        """What a kernel must write: ``[tokens, heads, head_size]``, padding left out."""
        me: Any = self
        tokens = metadata.num_actual_tokens
        return output[:tokens].view(tokens, -1, me.head_size)

    def context_len(self, metadata: Any) -> int:
        """Tokens of the longest sequence, new ones included."""
        raise NotImplementedError

    def count(
        self, kernel: BoundKernel, kv_cache: torch.Tensor, metadata: Any, capturing: bool
    ) -> None:
        """Counts a call that the kernel served."""
        raise NotImplementedError
