"""Did a run measure the servers or their prefix caches? By their own metrics and usage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from hwtune.domain.bench import ARMS, Gate, RequestRecord
from hwtune.domain.launch import Arm
from hwtune.domain.marker_set import parse_value
from hwtune.domain.metrics import parse_metrics

MOST_HITS: Final = 0.01
"""Share of prompt tokens. Fresh random prompts share no block, so more than this is no chance."""
MOST_APART: Final = 0.05
"""Where prompts share parts on purpose: evictions depend on the time, so the shares waver."""
_QUERIES = ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
_HITS = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
"""Names since and before vLLM 0.10 (vllm/v1/metrics/loggers.py). Both count tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheReading:
    """What one server said of its prefix cache at one moment."""

    arm: Arm
    server: int
    """Which of the arm's endpoints, from 0."""
    moment: Literal["start", "end"]
    """After the warm-up, or after the last measured request."""
    unix_s: float
    enabled: bool | None
    """``enable_prefix_caching`` of ``vllm:cache_config_info``."""
    queried_tokens: float | None
    hit_tokens: float | None


def read_cache(
    text: str, *, arm: Arm, server: int, moment: Literal["start", "end"], unix_s: float
) -> CacheReading:
    """From the text of ``/metrics``."""
    enabled: bool | None = None
    totals: dict[str, float] = {}
    for sample in parse_metrics(text):
        if sample.name == "vllm:cache_config_info":
            value = parse_value(sample.labels.get("enable_prefix_caching", ""), "bool")
            enabled = value if isinstance(value, bool) else enabled
        totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    return CacheReading(
        arm=arm,
        server=server,
        moment=moment,
        unix_s=unix_s,
        enabled=enabled,
        queried_tokens=next((totals[name] for name in _QUERIES if name in totals), None),
        hit_tokens=next((totals[name] for name in _HITS if name in totals), None),
    )


def cache_gates(
    readings: Sequence[CacheReading],
    records: Iterable[RequestRecord],
    *,
    declared: bool,
    shared: bool = False,
) -> tuple[Gate, ...]:
    """Prefix caching is set alike, and answered (next to) no prompt.

    Args:
        readings: of every server, in the order of time.
        records: of the run.
        declared: the launch plans tell what differs, so another setting is their matter.
        shared: prompts share parts by design (a trace, a chat's template): caches may answer, if
            alike.
    """
    measured = [record for record in records if record.phase == "measured"]
    hits = _hits_gate(readings, measured, shared)
    return (hits,) if declared else (_setting_gate(readings), hits)


def _setting_gate(readings: Sequence[CacheReading]) -> Gate:
    name = "prefix caching set alike"
    states = {
        arm: {reading.enabled for reading in readings if reading.arm == arm} - {None}
        for arm in ARMS
    }
    if not all(states.values()):
        return Gate(name=name, state="not checked", evidence="a server's metrics do not tell")
    shown = ", ".join(f"{arm} {_said(states[arm])}" for arm in ARMS)
    alike = len(states["baseline"] | states["candidate"]) == 1
    return Gate(name=name, state="passed" if alike else "failed", evidence=shown)


def _said(states: Iterable[bool | None]) -> str:
    return " and ".join(sorted("on" if state else "off" for state in states))


def _hits_gate(
    readings: Sequence[CacheReading], records: Sequence[RequestRecord], shared: bool
) -> Gate:
    name = "prefix caches answer alike" if shared else "prompts not from a prefix cache"
    shares = {arm: _share(arm, readings, records) for arm in ARMS}
    known = {arm: share for arm, share in shares.items() if share is not None}
    shown = ", ".join(f"{arm} {share * 100:.1f} % of tokens" for arm, share in known.items())
    apart = max(known.values(), default=0.0) - (min(known.values(), default=0.0) if shared else 0.0)
    if apart > (MOST_APART if shared else MOST_HITS):
        return Gate(name=name, state="failed", evidence=f"found in the prefix cache: {shown}")
    if len(known) < len(ARMS):
        return Gate(name=name, state="not checked", evidence="a server does not count its hits")
    return Gate(name=name, state="passed", evidence=f"found in the prefix cache: {shown}")


def _share(
    arm: Arm, readings: Sequence[CacheReading], records: Sequence[RequestRecord]
) -> float | None:
    """Largest share of prompt tokens found in the cache, by usage or by the metrics."""
    shares = [*_by_usage(arm, records), *_by_metrics(arm, readings)]
    return max(shares, default=None)


def _by_usage(arm: Arm, records: Sequence[RequestRecord]) -> list[float]:
    told = [r for r in records if r.arm == arm and r.cached_tokens is not None]
    asked = sum(record.prompt_tokens or 0 for record in told)
    return [sum(record.cached_tokens or 0 for record in told) / asked] if asked else []


def _by_metrics(arm: Arm, readings: Sequence[CacheReading]) -> list[float]:
    """Between each start and the next end of the same server."""
    shares = []
    start: dict[int, CacheReading] = {}
    for reading in readings:
        if reading.arm != arm:
            continue
        if reading.moment == "start":
            start[reading.server] = reading
            continue
        before = start.pop(reading.server, None)
        if before is not None and (share := _between(before, reading)) is not None:
            shares.append(share)
    return shares


def _between(before: CacheReading, after: CacheReading) -> float | None:
    if None in (before.hit_tokens, after.hit_tokens, after.queried_tokens):
        return 0.0 if after.enabled is False else None
    queried = (after.queried_tokens or 0.0) - (before.queried_tokens or 0.0)
    hit = (after.hit_tokens or 0.0) - (before.hit_tokens or 0.0)
    return max(0.0, hit) / queried if queried > 0 else 0.0
