"""config.json -> ModelShape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hwtune.domain.errors import InputError
from hwtune.domain.json_text import parse_json
from hwtune.domain.model import ModelShape
from hwtune.families import read_shape

_LARGEST_CONFIG_BYTES = 64 * 2**20
QUANTISATION_FILE = "hf_quant_config.json"


def load_model(reference: str) -> ModelShape:
    """The cache shape of a model directory or a config.json.

    A config without ``quantization_config`` takes it from the hf_quant_config.json beside it, where
    ModelOpt wrote it up to 0.29 (vLLM transformers_utils/config.py get_config).

    Raises:
        InputError: nothing readable is there, or the config lacks something.
    """
    path = config_path(reference)
    config = read_config(path)
    beside = path.with_name(QUANTISATION_FILE)
    if config.get("quantization_config") is None and beside.is_file():
        config["quantization_config"] = read_config(beside)
    return read_shape(config, str(path))


def config_path(reference: str) -> Path:
    """The config.json that a reference means.

    Raises:
        InputError: no such file.
    """
    if not reference.strip():
        message = "the model is an empty text; give a model directory, a config.json or a model id"
        raise InputError(message)
    try:
        path = Path(reference).expanduser()
        if path.is_dir():
            path = path / "config.json"
        if not path.is_file():
            what = "not a regular file" if path.exists() else "no such file"
            message = f"{path}: {what}; give a model directory, a config.json or a model id"
            raise InputError(message)
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        message = f"{reference[:200]!r}: cannot be a path: {reason}"
        raise InputError(message) from None
    return path


def read_config(path: Path) -> dict[str, Any]:
    """The JSON object in a file; ``Infinity`` and ``NaN`` are accepted as Python's reader does.

    Raises:
        InputError: the file cannot be read or holds no JSON object.
    """
    try:
        if path.stat().st_size > _LARGEST_CONFIG_BYTES:
            message = f"{path}: too large for a config.json"
            raise InputError(message)
        data = parse_json(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        message = f"{path}: cannot be read: {error.strerror}"
        raise InputError(message) from None
    except UnicodeDecodeError as error:
        message = f"{path}: not UTF-8 text (byte {error.start})"
        raise InputError(message) from None
    except ValueError as error:
        message = f"{path}: not JSON: {error}"
        raise InputError(message) from None
    if not isinstance(data, dict):
        message = f"{path}: expected a JSON object, found {type(data).__name__}"
        raise InputError(message)
    return data


def weight_bytes(reference: str) -> int | None:
    """Bytes of a model's weights, from its safetensors index; None when there is none.

    Raises:
        InputError: the index is no JSON object.
    """
    index = config_path(reference).with_name("model.safetensors.index.json")
    if not index.is_file():
        return None
    metadata = read_config(index).get("metadata")
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    return size if type(size) is int and size > 0 else None
