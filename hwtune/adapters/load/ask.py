"""Short questions to a server: which model it serves, and what its metrics say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hwtune.adapters.load.exchange import Connection, Endpoint, Exchange
from hwtune.adapters.load.http import MalformedResponseError, body_pieces, parse_head
from hwtune.adapters.load.loop import run_async
from hwtune.domain.errors import ExternalFailureError
from hwtune.domain.json_text import parse_json

_SHOWN_CHARACTERS = 300


def get_text(endpoint: Endpoint, path: str, timeout_s: float = 30.0) -> str:
    """Body of a GET.

    Raises:
        ExternalFailureError: no connection, or another status than 200.
    """
    return _ask(endpoint, endpoint.request(b"", "GET", path), path, timeout_s)


def post_json(endpoint: Endpoint, path: str, fields: Mapping[str, Any], timeout_s: float) -> Any:  # noqa: ANN401 - JSON
    """Answer to a POST of a JSON object.

    Raises:
        ExternalFailureError: no connection, another status than 200, or no JSON; says what the
            server said.
    """
    body = json.dumps(fields, separators=(",", ":")).encode()
    return _parsed(
        endpoint, path, _ask(endpoint, endpoint.request(body, path=path), path, timeout_s)
    )


def _ask(endpoint: Endpoint, request: bytes, path: str, timeout_s: float) -> str:
    exchange = run_async(_send(endpoint, request, timeout_s))
    problem = exchange.detail or exchange.ending
    if exchange.ending == "complete":
        try:
            head = parse_head(b"".join(piece for _, piece in exchange.reads))
            if head is not None:
                pieces = body_pieces(exchange.reads, head)
                text = b"".join(piece for _, piece in pieces).decode("utf-8", "replace")
                if head.status == 200:
                    return text
                shown = " ".join(text[:_SHOWN_CHARACTERS].split())
                problem = f"HTTP status {head.status} {shown}".rstrip()
        except MalformedResponseError as error:
            problem = str(error)
    message = f"{endpoint.url}{path}: {problem}"
    raise ExternalFailureError(message)


async def _send(endpoint: Endpoint, request: bytes, timeout_s: float) -> Exchange:
    connection = Connection(endpoint)
    exchange = await connection.send(request, timeout_s)
    connection.close()
    return exchange


def get_json(endpoint: Endpoint, path: str) -> Any:  # noqa: ANN401 - JSON
    """GET of a small JSON document.

    Raises:
        ExternalFailureError: no connection, another status than 200, or no JSON.
    """
    return _parsed(endpoint, path, get_text(endpoint, path))


def _parsed(endpoint: Endpoint, path: str, text: str) -> Any:  # noqa: ANN401 - JSON
    try:
        return parse_json(text)
    except ValueError as error:
        message = f"{endpoint.url}{path}: {error}"
        raise ExternalFailureError(message) from None


def served_model(endpoint: Endpoint) -> tuple[str, int | None]:
    """Name under which a server answers, and the most tokens a request may have in all.

    Raises:
        ExternalFailureError: the server does not answer, or names no model.
    """
    data = get_json(endpoint, "/v1/models")
    try:
        first = data["data"][0]
        name = str(first["id"])
    except (KeyError, IndexError, TypeError):
        message = f"{endpoint.url}/v1/models names no model"
        raise ExternalFailureError(message) from None
    length = first.get("max_model_len")
    return name, length if isinstance(length, int) else None


def metrics_text(endpoint: Endpoint) -> str | None:
    """``/metrics``, or None where there is none."""
    try:
        return get_text(endpoint, "/metrics")
    except ExternalFailureError:
        return None
