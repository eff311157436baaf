"""A pasted vLLM command line."""

from __future__ import annotations

import shlex

import pytest

from hwtune.domain.errors import UsageError
from hwtune.domain.vllm_command import split_command


@pytest.mark.parametrize(
    "line",
    [
        "M",
        "serve M",
        "vllm serve M --port 8000",
        "/opt/bin/vllm serve M",
        "CUDA_VISIBLE_DEVICES=0 VLLM_X=1 vllm serve M",
        "python -m vllm.entrypoints.openai.api_server --model M --port 8000",
        "python3 -m vllm.entrypoints.openai.api_server --model=M",
        "python3.12 -m vllm.entrypoints.cli.main serve M -tp 4",
        "vllm serve --port 8000 M",
        "vllm serve -tp 4 --trust-remote-code M --enforce-eager",
        "vllm serve -tp4 M",
        "vllm serve --tensor_parallel_size=2 M",
        "vllm serve --some-new-flag value M",
        "vllm serve M --served-model-name a b c",
        "vllm serve M --kv-cache-dtype-skip-layers 1 2 3 --enable-prefix-caching",
        "vllm serve --no-enable-prefix-caching M --model other",
    ],
)
def test_the_model_is_found(line: str) -> None:
    assert split_command(shlex.split(line))[0] == "M"


def test_flags_keep_their_values() -> None:
    words = shlex.split("vllm serve --port 8000 M -tp 4")
    assert split_command(words)[1] == ("--port", "8000", "-tp", "4")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("M N", "N"),
        ("vllm serve M --tensor-parallel-size 2 N", "N"),
        ("M --port 8000 N", "N"),
        ("", "missing"),
        ("vllm serve", "missing"),
        ("--port 8000", "'8000' was read as a value of --port"),
        ("-tp 4", "'4' was read as a value of -tp"),
        ("--model", "missing"),
    ],
)
def test_what_names_no_model_or_two(line: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        split_command(shlex.split(line))
