"""Pages that real vLLM (0.32 executed, older releases' rules executed) printed or refused.

``page_facts/models.json`` holds the shape fields of each config; ``facts.jsonl`` one fact a line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hwtune.domain.batch import batch_record
from hwtune.domain.model import ModelShape
from hwtune.families import read_shape

_HERE = Path(__file__).parent / "page_facts"
_MODELS = json.loads((_HERE / "models.json").read_text(encoding="utf-8"))
_FACTS = [json.loads(line) for line in (_HERE / "facts.jsonl").read_text("utf-8").splitlines()]


def _load(name: str) -> ModelShape:
    return read_shape(_MODELS[name], name)


def _name(fact: dict[str, Any]) -> str:
    knobs = " ".join(f"{key}={value}" for key, value in fact["knobs"].items())
    return f"{fact['version']} {fact['model']} {knobs}"


@pytest.mark.parametrize("fact", _FACTS, ids=_name)
def test_fact(fact: dict[str, Any]) -> None:
    got = batch_record(fact, None, _load)
    if "error" in fact:
        assert got["error"]["class"] == fact["error"]["class"]
        assert fact["error"]["contains"] in got["error"]["message"]
        return
    wanted = dict(fact["expect"])
    padding = wanted.pop("padding_pct", None)
    assert {key: got.get(key) for key in wanted} == wanted
    if padding is not None:
        assert got["padding_pct"] == pytest.approx(padding, abs=2e-5)


def test_facts_cover_every_family_and_generation() -> None:
    families = {_load(fact["model"]).family for fact in _FACTS}
    assert families >= {"gdn", "mamba1", "mamba2", "short_conv", "kda", "linear_attention"}
    assert len({fact["version"] for fact in _FACTS}) >= 24
