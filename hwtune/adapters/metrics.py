"""What a running server says of itself over HTTP: /metrics, /version, /health, /v1/models."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass

from hwtune.domain.errors import ExternalFailureError, UsageError
from hwtune.domain.evidence import Place, Sighting, Value
from hwtune.domain.json_text import parse_json

_MAX_BYTES = 32 << 20
_RANK = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveServer:
    """Answers of one server."""

    url: str
    metrics_text: str | None
    """None: the server has no /metrics (it was started without statistics)."""
    sightings: tuple[Sighting, ...]


def scrape(url: str, *, timeout_s: float = 10.0) -> LiveServer:
    """Asks a server for its metrics, version and models.

    Args:
        url: base, e.g. ``http://127.0.0.1:8000``; a trailing ``/v1`` or ``/metrics`` is ignored.
        timeout_s: per request, in seconds.

    Raises:
        UsageError: the URL is not http or https.
        ExternalFailureError: the server does not answer.
    """
    base = _base(url)
    metrics = fetch(f"{base}/metrics", timeout_s=timeout_s)
    found: list[Sighting] = []
    version = _json_value(fetch(f"{base}/version", timeout_s=timeout_s), "version")
    if isinstance(version, str):
        found.append(_sighting("vllm_version", version, f"{base}/version"))
    if fetch(f"{base}/health", timeout_s=timeout_s) is not None:
        found.append(_sighting("startup_complete", True, f"{base}/health"))
    found.extend(_models(fetch(f"{base}/v1/models", timeout_s=timeout_s), f"{base}/v1/models"))
    return LiveServer(url=base, metrics_text=metrics, sightings=tuple(found))


def _base(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        message = f"--url {url!r}: write http://host:port"
        raise UsageError(message)
    path = parts.path.rstrip("/").removesuffix("/metrics").removesuffix("/v1")
    return f"{parts.scheme}://{parts.netloc}{path}"


def fetch(url: str, *, timeout_s: float) -> str | None:
    """Body of a GET, or None when the server answers with an HTTP error.

    Raises:
        ExternalFailureError: nothing answers at the URL, or not within the time.
    """
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as reply:
            body: bytes = reply.read(_MAX_BYTES)
            return body.decode("utf-8", errors="replace")
    except urllib.error.HTTPError:
        return None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        message = f"{url}: no answer ({reason}); is the server up?"
        raise ExternalFailureError(message) from None


def _json_value(text: str | None, key: str) -> object:
    try:
        data = parse_json(text or "null")
    except ValueError:
        return None
    return data.get(key) if isinstance(data, dict) else None


def _models(text: str | None, url: str) -> list[Sighting]:
    models = _json_value(text, "data")
    if not isinstance(models, list) or not models or not isinstance(models[0], dict):
        return []
    found, first = [], models[0]
    if isinstance(first.get("root"), str):
        found.append(_sighting("model", first["root"], url))
    if isinstance(first.get("max_model_len"), int):
        found.append(_sighting("max_model_len", first["max_model_len"], url))
    return found


def _sighting(fact: str, value: Value, url: str) -> Sighting:
    place = Place(file=url, line=None, process=None, time=None, text=f"{fact}={value}")
    return Sighting(fact=fact, value=value, rank=_RANK, place=place)
