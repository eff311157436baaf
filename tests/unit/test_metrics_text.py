"""Prometheus text -> facts."""

from __future__ import annotations

from hwtune.domain.metrics import metric_sightings, parse_metrics

TEXT = r"""# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="8",cache_dtype="auto",enable_prefix_caching="True",engine="0",mamba_block_size="None",mamba_cache_mode="align",num_gpu_blocks="512",x="a \"quoted\", text"} 1.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 3.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 2.0
python_info{version="3.11"} 1.0
broken line here
vllm:nan NaN
"""


def test_cache_config_states_facts_with_their_line() -> None:
    found = {item.fact: item for item in metric_sightings(TEXT, "metrics.txt")}
    assert {name: item.value for name, item in found.items()} == {
        "scheduler_block_size": 8,
        "prefix_caching": True,
        "mamba_cache_mode": "align",
        "num_gpu_blocks": 512,
        "kv_cache_dtype": "auto",
        "requests_served": 5,
    }
    assert (found["num_gpu_blocks"].place.file, found["num_gpu_blocks"].place.line) == (
        "metrics.txt",
        3,
    )


def test_labels_may_hold_quotes_and_commas() -> None:
    sample = next(parse_metrics(TEXT))
    assert sample.labels["x"] == 'a "quoted", text'


def test_no_metrics_no_facts() -> None:
    assert list(metric_sightings("<html>404</html>", "x")) == []
