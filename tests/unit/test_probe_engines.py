"""Which data-parallel engines the probe reaches."""

from __future__ import annotations

import dataclasses
import json
import urllib.request
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hwtune.adapters.vllm import probe as probing
from tests.unit.test_planning import plan


def sent(monkeypatch: pytest.MonkeyPatch, *flags: str) -> list[urllib.request.Request]:
    requests: list[urllib.request.Request] = []
    monkeypatch.setattr(probing, "ask", lambda request, timeout_s: requests.append(request))
    planned = dataclasses.replace(plan(), argv=("vllm", "serve", "m", *flags))
    server = SimpleNamespace(plan=planned, url="http://127.0.0.1:1")
    assert probing.probe(cast("Any", server)) is None
    return requests


def test_a_lone_engine_is_asked_without_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    (request,) = sent(monkeypatch)
    assert "X-data-parallel-rank" not in request.headers
    assert request.get_header("X-data-parallel-rank") is None


@pytest.mark.parametrize("flags", [("-dp", "2"), ("--data_parallel_size=2",)])
def test_every_data_parallel_engine_gets_a_prompt_of_its_own(
    monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    requests = sent(monkeypatch, *flags)
    ranks = [dict(request.header_items())["X-data-parallel-rank"] for request in requests]
    assert ranks == ["0", "1"]
    prompts = [json.loads(cast("bytes", request.data))["prompt"] for request in requests]
    assert prompts[0] != prompts[1]


@pytest.mark.parametrize(
    "flag", ["--data-parallel-rank=1", "--data-parallel-external-lb", "--headless"]
)
def test_engines_behind_another_balancer_are_not_named(
    monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    assert len(sent(monkeypatch, "-dp", "4", flag)) == 1
