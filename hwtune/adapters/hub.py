"""Model references that may live on the Hugging Face hub -> a local path."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from hwtune.domain.errors import ExternalFailureError, InputError, MissingDependencyError
from hwtune.io.model_config import QUANTISATION_FILE

HUB_TIMEOUT_S = 5.0
"""How long the hub may take to answer one request."""

_MODEL_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def resolve_model(reference: str) -> Path:
    """The local directory or file that a reference means, downloading its configs if need be.

    A path that exists wins. A Hugging Face id is looked up in the local cache first, which works
    without the network and without huggingface_hub.

    Raises:
        InputError: neither a path nor a model id.
        MissingDependencyError: the id is not cached and huggingface_hub is not installed.
        ExternalFailureError: the hub did not give the config.
    """
    path = Path(reference).expanduser()
    if _exists(path, reference):
        return path
    if not _MODEL_ID.fullmatch(reference):
        message = (
            f"{reference}: no such file or directory, and not a model id such as Qwen/Qwen3.5-27B"
        )
        raise InputError(message)
    return _cached(reference) or _download(reference)


def _exists(path: Path, reference: str) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError) as error:
        message = f"{reference[:200]!r}: cannot be a path: {error}"
        raise InputError(message) from None


def _cached(reference: str) -> Path | None:
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    root = Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser()
    folder = root / f"models--{reference.replace('/', '--')}"
    pointer = folder / "refs" / "main"
    candidates = list((folder / "snapshots").glob("*/config.json"))
    if pointer.is_file():
        commit = pointer.read_text(encoding="utf-8", errors="replace").strip()
        candidates.sort(key=lambda found: found.parent.name != commit)
    return candidates[0] if candidates else None


def _download(reference: str) -> Path:
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
    except ImportError:
        message = (
            f"{reference}: not in the local Hugging Face cache; to fetch its config.json, "
            "pip install 'hwtune[hub]'"
        )
        raise MissingDependencyError(message) from None
    # Its warnings about each retry would bury the one line that is the answer.
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    path = ""
    for name in ("config.json", QUANTISATION_FILE):
        try:
            found = hf_hub_download(repo_id=reference, filename=name, etag_timeout=HUB_TIMEOUT_S)
        except Exception as error:  # noqa: BLE001 - requests', httpx' and the hub's own errors
            absent = isinstance(error, EntryNotFoundError)
            if path and absent and not isinstance(error, LocalEntryNotFoundError):
                break  # few checkpoints have the second
            text = str(error).strip().splitlines()
            message = f"{reference}: the hub did not give {name}: {text[0] if text else error!r}"
            raise ExternalFailureError(message) from None
        path = path or found
    return Path(path)
