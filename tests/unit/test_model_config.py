"""Configs as they come: nested, odd and broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hwtune.domain.deployment import Deployment
from hwtune.domain.errors import InputError
from hwtune.domain.page import derive_page
from hwtune.families import FAMILIES, read_shape
from hwtune.io.model_config import load_model, weight_bytes
from tests.unit.test_page_rules import JAMBA, KIMI, QWEN_27B

TINY = Path(__file__).parents[2] / "examples" / "tiny-qwen3.5"


def _write(folder: Path, config: object) -> Path:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_a_directory_and_its_file_give_the_same(tmp_path: Path) -> None:
    folder = _write(tmp_path, QWEN_27B)
    one, other = load_model(str(folder)), load_model(str(folder / "config.json"))
    assert one.attention == other.attention
    assert one.keys["number of KV heads"] == "text_config.num_key_value_heads"
    assert (one.attention.num_layers, one.recurrent and one.recurrent.num_layers) == (16, 48)


def test_layers_by_period_and_offset() -> None:
    shape = read_shape(JAMBA, "x")
    assert shape.attention.num_layers == 4
    assert shape.recurrent is not None
    assert shape.recurrent.num_layers == 28


def test_mla_counts_one_latent_vector() -> None:
    attention = read_shape(KIMI, "x").attention
    assert (attention.is_mla, attention.num_kv_heads, attention.head_size) == (True, 1, 576)


def test_infinity_in_json_is_accepted(tmp_path: Path) -> None:
    text = json.dumps(JAMBA)[:-1] + ', "time_step_limit": [0.0, Infinity]}'
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    assert load_model(str(tmp_path)).family == "mamba1"


def test_no_architecture_belongs_to_two_families() -> None:
    names = [name for family in FAMILIES for name in family.architectures]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": []}, "'architectures'"),
        ({"architectures": "Qwen3_5ForCausalLM"}, "'architectures'"),
        ({"architectures": ["NoSuchModel"]}, "'NoSuchModel' is not known. Hybrid families: gdn:"),
        ({"mamba_d_state": None}, "key 'mamba_d_state' is missing"),
        ({"mamba_d_state": "16"}, "key 'mamba_d_state' must be an integer, not '16'"),
        ({"mamba_d_state": True}, "key 'mamba_d_state' must be an integer, not True"),
        ({"mamba_d_state": 0}, "key 'mamba_d_state' must be at least 1"),
        ({"mamba_d_state": -3}, "key 'mamba_d_state' must be at least 1"),
        ({"mamba_d_state": 10**30}, "key 'mamba_d_state' must be at least 1 and sensible"),
        ({"mamba_d_state": float("nan")}, "key 'mamba_d_state' must be an integer, not nan"),
        ({"mamba_d_state": float("inf")}, "key 'mamba_d_state' must be an integer, not inf"),
        ({"mamba_d_state": [16]}, "key 'mamba_d_state' must be an integer"),
        ({"mamba_expand": float("nan")}, "key 'mamba_expand' must be positive"),
        ({"mamba_expand": {}}, "key 'mamba_expand' must be a number"),
        ({"dtype": "int8"}, "key 'dtype' must be float32"),
        ({"dtype": ["bfloat16"]}, "key 'dtype' must be float32"),
        ({"layer_types": "all"}, "key 'layer_types' must be a list of strings"),
        ({"layers_block_type": [1, 2]}, "key 'layers_block_type' must be a list of strings"),
        ({"num_attention_heads": None}, "key 'num_attention_heads' is missing"),
    ],
)
def test_bad_values_name_file_and_key(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    config = {key: value for key, value in (JAMBA | change).items() if value is not None}
    _write(tmp_path, config)
    with pytest.raises(InputError) as caught:
        load_model(str(tmp_path))
    text = str(caught.value)
    assert message in text
    assert text.startswith(str(tmp_path))
    assert "\n" not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["linear_attention", "full_attention"], "has 2 entries, and num_hidden_layers is "),
        (["linear_attention", "psychic_attention"], "has 'psychic_attention'; known: linear_att"),
        (["linear_attention"], "names no attention layer"),
        ([], "names no attention layer"),
    ],
)
def test_impossible_layers_of_a_gdn_model(words: list[str], message: str, tmp_path: Path) -> None:
    config = json.loads((TINY / "config.json").read_text(encoding="utf-8"))
    config.get("text_config", config)["layer_types"] = words
    _write(tmp_path, config)
    with pytest.raises(InputError, match=f"layer_types' {message}"):
        load_model(str(tmp_path))


@pytest.mark.parametrize(
    ("top_level", "version", "hybrid"),
    [
        ("attention", "0.32.0", False),
        ("full_attention", "0.32.0", False),
        ("full_attention", "0.28.0", True),
        (None, "0.32.0", True),
    ],
)
def test_attention_layers_only(
    top_level: str | None, version: str, hybrid: bool, tmp_path: Path
) -> None:
    config = json.loads((TINY / "config.json").read_text(encoding="utf-8"))
    text = config.get("text_config", config)
    text["layer_types"] = ["full_attention"] * text["num_hidden_layers"]
    if top_level is None and text is config:
        config = {"architectures": config.pop("architectures"), "text_config": config}
    elif top_level is not None:
        config["layer_types"] = [top_level] * text["num_hidden_layers"]
    _write(tmp_path, config)
    deployment = Deployment(version=version)
    page = derive_page(load_model(str(tmp_path)), deployment, alignment_tokens=16)
    assert page.hybrid is hybrid


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b"[]", "expected a JSON object, found list"),
        (b"null", "expected a JSON object, found NoneType"),
        (b'{"a": ', "not JSON"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_broken_files(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_model(str(tmp_path))


def test_a_directory_without_config(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_model(str(tmp_path))


@pytest.mark.parametrize("reference", ["", "\0", "x" * 5000])
def test_what_is_no_path(reference: str) -> None:
    with pytest.raises(InputError):
        load_model(reference)


def test_weights_come_from_the_index(tmp_path: Path) -> None:
    folder = _write(tmp_path, QWEN_27B)
    assert weight_bytes(str(folder)) is None
    index = folder / "model.safetensors.index.json"
    index.write_text('{"metadata": {"total_size": 54000000000}}', encoding="utf-8")
    assert weight_bytes(str(folder)) == 54_000_000_000
