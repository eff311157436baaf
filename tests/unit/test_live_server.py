"""Facts from a server's HTTP endpoints, against a server in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from hwtune.adapters.metrics import scrape
from hwtune.domain.errors import ExternalFailureError, UsageError
from hwtune.domain.markers import check
from hwtune.io.run_evidence import collect

PAGES = {
    "/metrics": 'vllm:cache_config_info{block_size="832"} 1.0\n',
    "/version": '{"version": "0.32.0"}',
    "/v1/models": '{"data": [{"id": "m", "root": "org/m", "max_model_len": 8192}]}',
}


class _Handler(BaseHTTPRequestHandler):
    pages: dict[str, str] = PAGES

    def do_GET(self) -> None:
        text = self.pages.get(self.path)
        self.send_response(200 if text is not None else 404)
        self.end_headers()
        self.wfile.write((text or "").encode())

    def log_message(self, format: str, *args: object) -> None:
        """Keeps the tests' output clean."""


@pytest.fixture
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("tail", ["", "/", "/v1", "/metrics"])
def test_version_models_and_metrics(url: str, tail: str) -> None:
    live = scrape(url + tail)
    assert live.metrics_text == PAGES["/metrics"]
    assert {item.fact: item.value for item in live.sightings} == {
        "vllm_version": "0.32.0",
        "model": "org/m",
        "max_model_len": 8192,
    }
    assert live.sightings[0].place.file == f"{url}/version"


def test_a_server_that_is_healthy_has_started(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Handler, "pages", {**PAGES, "/health": ""})
    live = scrape(url)
    evidence = collect(None, metrics_text=live.metrics_text, sightings=live.sightings)
    assert evidence.value("startup_complete") is True
    assert [place.file for place in evidence.places("startup_complete")] == [f"{url}/health"]
    assert check(evidence, None, require_kernel_hits=False).passed


@pytest.mark.parametrize(
    "pages",
    [{}, {"/version": "no json", "/v1/models": "[]"}, {"/v1/models": '{"data": [5]}'}],
)
def test_a_server_of_another_kind_states_nothing(
    url: str, pages: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Handler, "pages", pages)
    live = scrape(url)
    assert (live.metrics_text, live.sightings) == (None, ())


def test_nobody_listens() -> None:
    with pytest.raises(ExternalFailureError, match="is the server up"):
        scrape("http://127.0.0.1:9")


@pytest.mark.parametrize("bad", ["localhost:8000", "file:///etc/passwd", "http://", "x"])
def test_urls_that_are_none(bad: str) -> None:
    with pytest.raises(UsageError, match="http://host:port"):
        scrape(bad)
