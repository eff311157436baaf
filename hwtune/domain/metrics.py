"""Prometheus text of ``/metrics`` -> facts and counters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hwtune.domain.evidence import Place, Sighting
from hwtune.domain.marker_set import ValueType, parse_value

_SAMPLE = re.compile(
    r"(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>[^\s]+)(?: \d+)?$"
)
_LABEL = re.compile(r'(?P<key>[A-Za-z_]\w*)="(?P<value>(?:[^"\\]|\\.)*)"')
_MAX_LINE = 65_536
_RANK = 20
"""The engine's own account outranks log lines, which are printed before the last change."""
_BELOW_THE_LOG = 9

CACHE_CONFIG_FACTS: Mapping[str, tuple[str, ValueType]] = {
    "block_size": ("scheduler_block_size", "int"),
    "effective_attention_block_size": ("attention_block_size", "int"),
    "mamba_block_size": ("mamba_block_size", "int"),
    "hash_block_size": ("hash_block_size", "int"),
    "enable_prefix_caching": ("prefix_caching", "bool"),
    "mamba_cache_mode": ("mamba_cache_mode", "str"),
    "num_gpu_blocks": ("num_gpu_blocks", "int"),
    "cache_dtype": ("kv_cache_dtype", "str"),
    "user_specified_block_size": ("user_specified_block_size", "bool"),
}
"""Label of ``vllm:cache_config_info`` -> fact. Source: vllm/v1/metrics/loggers.py and
vllm/config/cache.py (metrics_info), 0.8 to 0.33; ``block_size`` there is the smallest over the
KV-cache groups once the engine has started, and ``mamba_block_size`` is the engine process's copy,
which a worker of its own process does not update."""

_SERVED: Mapping[str, str] = {"vllm:request_success_total": "requests_served"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample of the exposition format."""

    name: str
    labels: Mapping[str, str]
    value: float
    line: int


def parse_metrics(text: str) -> Iterator[Sample]:
    """Samples of a Prometheus text; what cannot be read is left out."""
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if not line or line.startswith("#") or len(line) > _MAX_LINE:
            continue
        match = _SAMPLE.match(line)
        if match is None:
            continue
        value = parse_value(match["value"], "float")
        if isinstance(value, float):
            labels = {
                m["key"]: _unescape(m["value"]) for m in _LABEL.finditer(match["labels"] or "")
            }
            yield Sample(name=match["name"], labels=labels, value=value, line=number)


def _unescape(text: str) -> str:
    return text.replace(r"\"", '"').replace(r"\n", "\n").replace(r"\\", "\\")


def metric_sightings(text: str, file: str) -> Iterator[Sighting]:
    """What the metrics state of the cache, each with its line."""
    served: dict[str, float] = {}
    for sample in parse_metrics(text):
        if sample.name in _SERVED:
            served[_SERVED[sample.name]] = served.get(_SERVED[sample.name], 0.0) + sample.value
        if sample.name != "vllm:cache_config_info":
            continue
        for label, (fact, kind) in CACHE_CONFIG_FACTS.items():
            value = parse_value(sample.labels.get(label, ""), kind)
            if value is not None:
                shown = f'{sample.name}{{{label}="{sample.labels[label]}"}}'
                place = Place(file=file, line=sample.line, process=None, time=None, text=shown)
                rank = _BELOW_THE_LOG if fact == "attention_block_size" else _RANK
                yield Sighting(fact=fact, value=value, rank=rank, place=place)
    for fact, total in served.items():
        place = Place(file=file, line=None, process=None, time=None, text=f"{fact} {total:g}")
        yield Sighting(fact=fact, value=int(total), rank=_RANK, place=place)
