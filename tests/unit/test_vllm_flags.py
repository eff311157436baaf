"""vLLM's own flags, however they are written."""

from __future__ import annotations

import pytest

from hwtune.domain.deployment import Deployment
from hwtune.domain.errors import UsageError
from hwtune.domain.vllm_flags import deployment_from_flags, misspelt_flags


def _read(line: str) -> Deployment:
    return deployment_from_flags(line.split())[0]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", Deployment()),
        ("--tensor-parallel-size 4", Deployment(tensor_parallel_size=4)),
        ("--tensor_parallel_size=4", Deployment(tensor_parallel_size=4)),
        ("-tp 4 -pp 2", Deployment(tensor_parallel_size=4, pipeline_parallel_size=2)),
        ("-tp=4", Deployment(tensor_parallel_size=4)),
        ("--kv-cache-dtype fp8 --dtype float16", Deployment(kv_cache_dtype="fp8", dtype="float16")),
        ("--enable-prefix-caching", Deployment(enable_prefix_caching=True)),
        ("--no-enable-prefix-caching", Deployment(enable_prefix_caching=False)),
        ("--max-model-len 8k", Deployment(max_model_len=8000)),
        ("--max-model-len 8K", Deployment(max_model_len=8192)),
        ("--max-model-len auto", Deployment()),
        ("--port 8000 --host 0.0.0.0 --seed 1", Deployment()),
        (
            '--speculative-config {"method":"mtp","num_speculative_tokens":3}',
            Deployment(num_speculative_tokens=3, speculative_method="mtp"),
        ),
        ("--speculative-config.num_speculative_tokens 2", Deployment(num_speculative_tokens=2)),
        (
            "--kv-cache-dtype-skip-layers 3 7 --block-size 64",
            Deployment(kv_cache_dtype_skip_layers=("3", "7"), block_size=64),
        ),
        ("--attention-backend TRITON_ATTN", Deployment(attention_backend="TRITON_ATTN")),
    ],
)
def test_flags(line: str, expected: Deployment) -> None:
    assert _read(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        "--tensor-parallel-size",
        "--tensor-parallel-size two",
        "--tensor-parallel-size 0",
        "--tensor-parallel-size -1",
        "--block-size 1e400k",
        "--gpu-memory-utilization 1.5",
        "--gpu-memory-utilization nan",
        "--speculative-config {",
        "--speculative-config [1]",
        '--speculative-config {"num_speculative_tokens":"3"}',
        '--speculative-config {"num_speculative_tokens":true}',
    ],
)
def test_bad_values_are_usage_errors(line: str) -> None:
    with pytest.raises(UsageError):
        _read(line)


def test_a_speculative_config_without_a_count_is_remarked() -> None:
    deployment, notes = deployment_from_flags(["--speculative-config", '{"method":"ngram"}'])
    assert deployment.num_speculative_tokens == 0
    assert "num_speculative_tokens" in notes[0]


def test_a_misspelt_flag_is_noticed() -> None:
    assert "--tensor-parallel-size" in misspelt_flags(["--tensor-paralel-size", "2"])[0]
    assert misspelt_flags(["--data-parallel-size", "2", "--served-model-name", "x"]) == ()
