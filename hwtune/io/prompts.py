"""Where prompts of exact length come from: the vocabulary of the model's own config.

Prompts are token ids. They have the wanted length by construction, need no tokenizer here, and
the server does no tokenization inside the measured time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hwtune.domain.errors import InputError
from hwtune.io.model_config import read_config


def read_vocab_size(model: str) -> int | None:
    """``vocab_size`` of a local model directory or config.json; None when it is not local.

    Raises:
        InputError: the config exists and cannot be read, or lacks the key.
    """
    path = Path(model)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        return None
    size = _vocab_size(read_config(path))
    if size is None:
        message = f"{path}: no whole number above 0 under vocab_size; give --vocab-size"
        raise InputError(message)
    return size


def _vocab_size(config: dict[str, Any]) -> int | None:
    """Top level, or the text part of a multi-modal config."""
    for part in (config, config.get("text_config"), config.get("llm_config")):
        size = part.get("vocab_size") if isinstance(part, dict) else None
        if type(size) is int and size > 0:
            return size
    return None
