"""Where prompts of exact length come from: the vocabulary of the model's own config.

Prompts are token ids. They have the wanted length by construction, need no tokenizer here, and
the server does no tokenization inside the measured time.
"""

from __future__ import annotations

import json
from pathlib import Path

from hwtune.domain.errors import InputError


def read_vocab_size(model: str) -> int | None:
    """``vocab_size`` of a local model directory or config.json; None when it is not local.

    Raises:
        InputError: the config exists and cannot be read, or lacks the key.
    """
    path = Path(model)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        return None
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        message = f"{path}: cannot be read as JSON ({error})"
        raise InputError(message) from None
    size = _vocab_size(config)
    if size is None:
        message = f"{path}: no whole number above 0 under vocab_size; give --vocab-size"
        raise InputError(message)
    return size


def _vocab_size(config: object) -> int | None:
    """Top level, or the text part of a multi-modal config."""
    if not isinstance(config, dict):
        return None
    for part in (config, config.get("text_config"), config.get("llm_config")):
        size = part.get("vocab_size") if isinstance(part, dict) else None
        if isinstance(size, int) and size > 0:
            return size
    return None
