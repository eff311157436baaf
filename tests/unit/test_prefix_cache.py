"""Prefix caches: how they are set, and how much of a run they answered."""

from __future__ import annotations

from typing import Literal

import pytest

from hwtune.domain.bench import RequestRecord
from hwtune.domain.launch import Arm
from hwtune.domain.prefix_cache import CacheReading, cache_gates, read_cache

Moment = Literal["start", "end"]


def _text(enabled: str, queries: float, hits: float, prefix: str = "vllm:") -> str:
    return (
        f'vllm:cache_config_info{{block_size="16",enable_prefix_caching="{enabled}"}} 1.0\n'
        f'{prefix}prefix_cache_queries_total{{engine="0"}} {queries}\n'
        f'{prefix}prefix_cache_hits_total{{engine="0"}} {hits}\n'
        f'{prefix}prefix_cache_queries_total{{engine="1"}} 0\n'
    )


def _reading(arm: Arm, moment: Moment, text: str, server: int = 0) -> CacheReading:
    return read_cache(text, arm=arm, server=server, moment=moment, unix_s=0.0)


def _run(arm: Arm, enabled: str, hits: float, server: int = 0) -> list[CacheReading]:
    """A server that answered 1000 tokens before the run, all from its cache, and 1000 in it."""
    return [
        _reading(arm, "start", _text(enabled, 1000, 1000), server),
        _reading(arm, "end", _text(enabled, 2000, 1000 + hits), server),
    ]


def _states(
    readings: list[CacheReading], *, declared: bool = False, shared: bool = False
) -> list[str]:
    return [gate.state for gate in cache_gates(readings, (), declared=declared, shared=shared)]


@pytest.mark.parametrize(
    ("baseline", "candidate", "states"),
    [
        (("False", 0), ("False", 0), ["passed", "passed"]),
        (("True", 5), ("True", 9), ["passed", "passed"]),
        (("True", 5), ("True", 11), ["passed", "failed"]),
        (("False", 0), ("True", 0), ["failed", "passed"]),
    ],
)
def test_only_what_happened_between_start_and_end_counts(
    baseline: tuple[str, float], candidate: tuple[str, float], states: list[str]
) -> None:
    readings = [*_run("baseline", *baseline), *_run("candidate", *candidate)]
    assert _states(readings) == states
    assert _states(readings, declared=True) == states[1:]


def test_where_prompts_share_parts_the_caches_must_answer_alike() -> None:
    alike = [*_run("baseline", "True", 300), *_run("candidate", "True", 340)]
    assert _states(alike, shared=True) == ["passed", "passed"]
    apart = [*_run("baseline", "True", 300), *_run("candidate", "True", 360)]
    assert _states(apart, shared=True) == ["passed", "failed"]


def test_one_of_several_servers_that_answers_from_its_cache_is_found() -> None:
    readings = [*_run("baseline", "True", 0), *_run("candidate", "True", 0)]
    readings += _run("candidate", "True", 500, server=1)
    assert _states(readings) == ["passed", "failed"]


def test_the_names_of_older_releases_are_known_and_silence_is_not_green() -> None:
    reading = _reading("baseline", "end", _text("True", 10, 4, "vllm:gpu_"))
    assert (reading.queried_tokens, reading.hit_tokens) == (10, 4)
    assert _states([]) == ["not checked", "not checked"]
    one = _run("baseline", "False", 0)
    assert _states(one) == ["not checked", "not checked"]


def test_usage_tells_where_metrics_do_not() -> None:
    record = RequestRecord(
        arm="candidate",
        phase="measured",
        tier="t",
        pair=0,
        prompt=0,
        prompt_id="p",
        started_unix_s=0.0,
        ended_unix_s=1.0,
        prompt_tokens=100,
        cached_tokens=96,
    )
    (gate,) = cache_gates([], [record], declared=True)
    assert gate.state == "failed" and "candidate 96.0 % of tokens" in gate.evidence
