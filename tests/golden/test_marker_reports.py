"""Short logs of every kind -> the whole text report, and JSON that fits the published schema.

After a change that is meant, write the expected texts anew with
``python -m tests.golden.test_marker_reports`` and review the difference.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hwtune.domain.evidence import Evidence
from hwtune.domain.markers import MarkerReport, check
from hwtune.io.marker_reports import report_to_json
from hwtune.io.marker_sets import load_diagnoses
from hwtune.io.run_evidence import collect
from hwtune.report.markers import report_to_text

LOGS = Path(__file__).parent / "markers"
NAMES = sorted(path.stem for path in LOGS.glob("*.log"))
SCHEMA = Path(__file__).parents[2] / "docs" / "schemas" / "marker-report.json"


@pytest.fixture(autouse=True)
def beside_the_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports name files as they were given, and their length moves line breaks."""
    monkeypatch.chdir(LOGS)


def _report(name: str) -> tuple[MarkerReport, Evidence]:
    evidence = collect(None, log_paths=[f"{name}.log"])
    return check(evidence, None, require_kernel_hits=False, diagnoses=load_diagnoses()), evidence


def _text(name: str) -> str:
    return report_to_text(*_report(name)) + "\n"


@pytest.mark.parametrize("name", NAMES)
def test_text(name: str) -> None:
    assert _text(name) == (LOGS / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_json_fits_the_published_schema(name: str) -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    problems = list(_problems(json.loads(report_to_json(*_report(name))), schema, schema, "$"))
    assert problems == []


NAMED = """\
(APIServer pid=7) INFO 11-30 06:51:30 [api_utils.py:330] vLLM server version 0.32.0, serving model m
(EngineCore pid=9) INFO 11-30 06:51:36 [__init__.py:66] Loading plugin hwtune
(EngineCore pid=9) INFO 11-30 06:51:37 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with \
config: model='m', enable_prefix_caching=True, x=1
(APIServer pid=7) INFO 11-30 06:51:38 [config.py:688] Mamba cache mode is set to 'align' for X by \
default when prefix caching is enabled
(EngineCore pid=9) INFO 11-30 06:51:40 [cuda.py:423] Using FLASH_ATTN attention backend out of \
potential backends: ['FLASH_ATTN', 'TRITON_ATTN'].
(EngineCore pid=9) INFO 11-30 06:51:47 [interface.py:890] Setting attention block size to 784 \
tokens to ensure that attention page size is >= mamba page size.
(EngineCore pid=9) INFO 11-30 06:51:47 [interface.py:914] Padding mamba page size by 0.13% to \
ensure that mamba page size and attention page size are exactly equal.
(EngineCore pid=9) INFO 11-30 06:51:47 [kv_cache_utils.py:854] kv lcm block sizes 784
(EngineCore pid=9) INFO 11-30 06:51:47 [kv_cache_utils.py:2327] GPU KV cache size: 27,440 tokens, \
Maximum concurrency for 262,144 tokens per request: 0.42x
(APIServer pid=7) INFO 11-30 06:51:50 [loggers.py:137] Engine 000: vllm cache_config_info with \
initialization after num_gpu_blocks is: 141
(APIServer pid=7) INFO:     Application startup complete.
(EngineCore pid=9) ERROR 11-30 06:52:48 [core.py:2] Traceback (most recent call last):
(EngineCore pid=9) ERROR 11-30 06:52:48 [core.py:2] ValueError: None of the kernel sizes [128] can \
divide physical block size 784 evenly
"""
METRICS = 'vllm:cache_config_info{mamba_block_size="784",enable_prefix_caching="True"} 1.0'


def test_every_promised_fact_has_its_name_value_and_evidence(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text(NAMED)
    evidence = collect(None, log_paths=[log], metrics_text=METRICS)
    text = report_to_json(check(evidence, None, require_kernel_hits=False), evidence)
    facts = json.loads(text)["facts"]
    assert {name: facts[name]["value"] for name in facts if name in PROMISED} == PROMISED
    assert all(facts[name]["evidence"][0]["file"] for name in PROMISED)
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    assert list(_problems(json.loads(text), schema, schema, "$")) == []


PROMISED = {
    "vllm_version": "0.32.0",
    "attention_block_size": 784,
    "padding_pct": 0.13,
    "kernel_block_sizes": [128],
    "scheduler_block_size": 784,
    "mamba_block_size": 784,
    "prefix_caching": True,
    "mamba_cache_mode": "align",
    "attention_backend": "FLASH_ATTN",
    "backend_candidates": ["FLASH_ATTN", "TRITON_ATTN"],
    "kv_cache_tokens": 27440,
    "max_concurrency": 0.42,
    "num_gpu_blocks": 141,
    "startup_complete": True,
    "first_error": (
        "ValueError: None of the kernel sizes [128] can divide physical block size 784 evenly"
    ),
    "plugins_loaded": ["hwtune"],
}
"""What docs/proof.md names, with what the log above states."""


def test_the_schema_refuses_what_does_not_fit() -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    data = json.loads(report_to_json(*_report(NAMES[0])))
    data["checks"][0]["status"] = "maybe"
    del data["facts"]
    assert len(list(_problems(data, schema, schema, "$"))) == 2


TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}


def _problems(data: Any, schema: dict[str, Any], root: dict[str, Any], at: str) -> Iterator[str]:
    """The part of JSON Schema that the published one uses."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
    if "anyOf" in schema:
        if all(list(_problems(data, option, root, at)) for option in schema["anyOf"]):
            yield f"{at}: fits no alternative"
        return
    yield from _value_problems(data, schema, at)
    if isinstance(data, dict):
        for key, value in data.items():
            inner = schema.get("properties", {}).get(key, schema.get("additionalProperties", {}))
            yield from _problems(value, inner, root, f"{at}.{key}")
    if isinstance(data, list) and "items" in schema:
        for index, value in enumerate(data):
            yield from _problems(value, schema["items"], root, f"{at}[{index}]")


def _value_problems(data: Any, schema: dict[str, Any], at: str) -> Iterator[str]:
    names = schema.get("type", [])
    names = [names] if isinstance(names, str) else names
    if names and not any(isinstance(data, TYPES[name]) for name in names):
        yield f"{at}: {data!r} is not {names}"
    if "const" in schema and data != schema["const"]:
        yield f"{at}: {data!r} is not {schema['const']!r}"
    if "enum" in schema and data not in schema["enum"]:
        yield f"{at}: {data!r} is not one of {schema['enum']}"
    if isinstance(data, dict):
        yield from (
            f"{at}.{key} is missing" for key in schema.get("required", []) if key not in data
        )


if __name__ == "__main__":
    os.chdir(LOGS)
    for stem in NAMES:
        (LOGS / f"{stem}.txt").write_text(_text(stem), encoding="utf-8")
