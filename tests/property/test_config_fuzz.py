"""Whatever a config.json or a command line holds: an answer or one clear line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hwtune.domain.batch import batch_record
from hwtune.domain.deployment import Deployment
from hwtune.domain.errors import HwtuneError, InputError, UsageError
from hwtune.domain.page import derive_page
from hwtune.domain.vllm_flags import deployment_from_flags, misspelt_flags
from hwtune.families import FAMILIES, read_shape
from hwtune.io.model_config import load_model

_HERE = Path(__file__).parent
_CONFIGS: dict[str, dict[str, Any]] = json.loads(
    (_HERE.parent / "golden" / "page_facts" / "models.json").read_text(encoding="utf-8")
)
_ODD = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.text(max_size=6)
    | st.lists(st.integers(-1, 3) | st.text(max_size=3), max_size=3)
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
)
_JSON = st.recursive(_ODD, lambda inner: st.lists(inner, max_size=3), max_leaves=5)


@st.composite
def broken_configs(draw: st.DrawFn) -> dict[str, Any]:
    """A real config with a few keys replaced, removed or added."""
    config: dict[str, Any] = json.loads(json.dumps(draw(st.sampled_from([*_CONFIGS.values()]))))
    part = config.get("text_config", config) if draw(st.booleans()) else config
    for _ in range(draw(st.integers(1, 3))):
        key = draw(st.sampled_from(sorted(part)) | st.sampled_from(["layer_types", "dtype"]))
        if draw(st.booleans()):
            part.pop(key, None)
        else:
            part[key] = draw(_JSON)
        if not part:
            break
    return config


@given(broken_configs())
def test_broken_configs(config: dict[str, Any]) -> None:
    try:
        model = read_shape(config, "dir/config.json")
        derive_page(model, Deployment(), alignment_tokens=16)
    except InputError as error:
        assert str(error).startswith("dir/config.json: ")
        assert "\n" not in str(error)
    except HwtuneError as error:
        assert error.exit_status == 4


@given(st.dictionaries(st.text(max_size=12), _JSON, max_size=6))
def test_arbitrary_objects(config: dict[str, Any]) -> None:
    names = [name for family in FAMILIES for name in family.architectures]
    for architecture in (None, names[0], names[-1]):
        full = config | ({"architectures": [architecture]} if architecture else {})
        try:
            read_shape(full, "c")
        except InputError as error:
            assert str(error).startswith("c: ")


@given(st.binary(max_size=60))
def test_arbitrary_bytes(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_bytes(content)
        try:
            load_model(folder)
        except InputError as error:
            assert str(path) in str(error)


_FLAGS = st.sampled_from(
    [
        "--tensor-parallel-size",
        "-tp",
        "--block_size",
        "--kv-cache-dtype=fp8",
        "--speculative-config",
        "--speculative-config.num_speculative_tokens",
        "--kv-cache-dtype-skip-layers",
        "--no-enable-prefix-caching",
        "--max-model-len",
        "--gpu-memory-utilization",
        "--=",
        "-",
        "--",
        "=",
    ]
)


@given(st.lists(_FLAGS | st.text(max_size=10) | st.integers().map(str), max_size=8))
def test_arbitrary_flags(flags: list[str]) -> None:
    misspelt_flags(flags)
    try:
        deployment, _ = deployment_from_flags(flags)
    except UsageError as error:
        assert error.exit_status == 2
        return
    assert deployment.tensor_parallel_size >= 1


@given(
    st.dictionaries(
        st.sampled_from(["tp", "spec", "backends", "alignment", "prefix_caching", "x", "platform"]),
        _JSON | st.sampled_from([["TRITON_ATTN"], ["STUB_M0"], ["STUB_M64", "FLASHMLA"]]),
        max_size=4,
    ),
    _JSON,
)
def test_arbitrary_batch_cases(knobs: dict[str, Any], version: object) -> None:
    case = {"id": 1, "model": "qwen3.5-27b", "version": version, "knobs": knobs}
    record = batch_record(case, None, lambda name: read_shape(_CONFIGS[name], name))
    assert record["id"] == 1
    assert ("error" in record) != ("block_size" in record)
