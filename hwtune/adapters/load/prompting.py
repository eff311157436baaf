"""From a draw of the design to a request: token ids, or the text of a chat message."""

from __future__ import annotations

from collections.abc import Iterator

from hwtune.adapters.load.client import run_load
from hwtune.adapters.load.exchange import Endpoint
from hwtune.adapters.load.requests import Request
from hwtune.domain.bench import Phase, RequestRecord
from hwtune.domain.errors import ExternalFailureError
from hwtune.domain.launch import Arm
from hwtune.domain.prompts import (
    Draw,
    TextScale,
    draws,
    prompt_hash,
    shared_prompt,
    shared_text,
    text_prompt,
    warm_up_lengths,
)
from hwtune.domain.workload import Block, Design, Tier

_PROBE_WORDS = (64, 1088)


class PromptMaker:
    """Writes out the prompts of a design."""

    def __init__(self, design: Design) -> None:
        self._design = design
        self._scale: TextScale | None = None

    def measure_text(self, endpoint: Endpoint, model: str) -> str:
        """Finds out how many tokens a server makes of a word; says what it found.

        Raises:
            ExternalFailureError: the server answers no chat, or counts no tokens.
        """
        if self._design.endpoint != "chat":
            return ""
        records: list[RequestRecord] = []
        requests = [self._probe(words, model) for words in _PROBE_WORDS]
        run_load(
            endpoint,
            requests,
            concurrency=1,
            timeout_s=self._design.request_timeout_s,
            on_record=records.append,
        )
        self._scale = _scale(records)
        return (
            f"chat: {self._scale.tokens_per_word:.2f} tokens per word, and"
            f" {self._scale.fixed_tokens:.0f} per message"
        )

    def _probe(self, words: int, model: str) -> Request:
        text = text_prompt(f"{self._design.seed}/probe/{words}", words)
        return Request(
            arm="baseline",
            phase="warm-up",
            tier="probe",
            pair=0,
            attempt=0,
            prompt=words,
            prompt_id=prompt_hash(text),
            chat_text=text,
            model=model,
            output_tokens=2,
        )

    def block(self, block: Block, attempt: int, model: str) -> list[Request]:
        """Every request of a block."""
        return [
            self._request(
                block.arm, block.phase, block.tier, (block.pair, attempt, index), draw, model
            )
            for index, draw in enumerate(draws(self._design, block, attempt))
        ]

    def warm_up(self, arm: Arm, tier: Tier, number: int, model: str) -> Iterator[Request]:
        """The excluded requests of an arm and tier; ``number`` tells this warm-up from others."""
        for index, length in enumerate(warm_up_lengths(self._design, tier)):
            key = f"{self._design.seed}/warm-up/{tier.name}/{number}/{index}"
            due_s = None if self._design.arrival == "closed" else 0.0
            tokens = self._design.output_tokens
            draw = Draw(key=key, tokens=length, due_s=due_s, output_tokens=tokens)
            yield self._request(arm, "warm-up", tier, (0, 0, index), draw, model)

    def _request(
        self,
        arm: Arm,
        phase: Phase,
        tier: Tier,
        place: tuple[int, int, int],
        draw: Draw,
        model: str,
    ) -> Request:
        token_ids: tuple[int, ...] = ()
        text: str | None = None
        if self._design.endpoint == "chat":
            assert self._scale is not None
            text = shared_text(draw, self._scale)
        else:
            token_ids = tuple(shared_prompt(draw, self._design.vocab_size))
        return Request(
            arm=arm,
            phase=phase,
            tier=tier.name,
            pair=place[0],
            attempt=place[1],
            prompt=place[2],
            prompt_id=prompt_hash(token_ids if text is None else text),
            token_ids=token_ids,
            chat_text=text,
            model=model,
            output_tokens=draw.output_tokens,
            due_s=draw.due_s,
        )


def _scale(records: list[RequestRecord]) -> TextScale:
    failed = next((record for record in records if record.failure), None)
    if failed is not None or len(records) < len(_PROBE_WORDS):
        reason = f"{failed.failure} {failed.detail}" if failed else "no answer"
        message = f"the server does not answer a chat request: {reason}"
        raise ExternalFailureError(message)
    few, many = (record.prompt_tokens or 0 for record in records)
    per_word = (many - few) / (_PROBE_WORDS[1] - _PROBE_WORDS[0])
    if per_word <= 0:
        message = f"the server counts {few} and {many} tokens for {_PROBE_WORDS} words"
        raise ExternalFailureError(message)
    return TextScale(fixed_tokens=few - per_word * _PROBE_WORDS[0], tokens_per_word=per_word)
