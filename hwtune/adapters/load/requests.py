"""What is sent: one request, and where its record belongs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hwtune.domain.bench import Phase
from hwtune.domain.launch import Arm


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request to send, and where its record belongs."""

    arm: Arm
    phase: Phase
    tier: str
    pair: int
    attempt: int
    prompt: int
    prompt_id: str
    token_ids: tuple[int, ...] = ()
    """The prompt, for ``/v1/completions``."""
    chat_text: str | None = None
    """The prompt as one user's message, for ``/v1/chat/completions``."""
    model: str
    output_tokens: int
    due_s: float | None = None
    """Open loop: when to send it, in seconds after the first instant of the load."""

    @property
    def path(self) -> str:
        """Which of the two endpoints takes it."""
        return "/v1/completions" if self.chat_text is None else "/v1/chat/completions"

    def body(self) -> bytes:
        """JSON: greedy, exactly ``output_tokens`` long, usage counted."""
        fields: dict[str, Any] = {
            "model": self.model,
            **self._prompt_fields(),
            "min_tokens": self.output_tokens,
            "ignore_eos": True,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    def _prompt_fields(self) -> dict[str, Any]:
        if self.chat_text is None:
            return {"prompt": self.token_ids, "max_tokens": self.output_tokens}
        messages = [{"role": "user", "content": self.chat_text}]
        return {"messages": messages, "max_completion_tokens": self.output_tokens}
