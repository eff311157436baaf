"""Which steps count as replays of a graph."""

from __future__ import annotations

from typing import Any

import pytest

from hwtune.adapters.vllm import replays
from hwtune.adapters.vllm.dispatch import BoundKernel
from tests.plugin.test_dispatch import DECODE, CountedInMemory


@pytest.fixture(autouse=True)
def watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "_WATCHES", {})


class VllmsBuilder:
    def __init__(self, spec: Any, names: list[str], config: Any = None) -> None:
        self.names = names

    def build(self, common_prefix_len: int) -> str:
        return f"metadata of {common_prefix_len}"


class Builder(replays.WatchingBuilder, VllmsBuilder):
    pass


def captured(watch: replays.ReplayWatch, counters: CountedInMemory, layers: int) -> None:
    for _ in range(layers):
        kernel = BoundKernel(DECODE, lambda: None, None, counters)
        watch.captured[id(kernel)] = kernel


def replayed(counters: CountedInMemory) -> int:
    return counters.counts().get((DECODE.name, "replayed", ""), 0)


def test_a_step_without_a_call_is_a_replay_of_every_captured_layer() -> None:
    counters, builder = CountedInMemory(), Builder(None, ["a", "b"], config=1)
    watch = replays.watch_of("a")
    captured(watch, counters, layers=2)
    assert builder.build(7) == "metadata of 7"
    assert replayed(counters) == 0
    builder.build(0)
    assert replayed(counters) == 2


def test_a_step_with_calls_is_none() -> None:
    counters, builder = CountedInMemory(), Builder(None, ["a"])
    watch = replays.watch_of("a")
    captured(watch, counters, layers=1)
    for _ in range(3):
        builder.build(0)
        watch.calls += 1
    builder.build(0)
    assert replayed(counters) == 0


def test_layers_without_a_captured_kernel_count_nothing() -> None:
    builder = Builder(None, ["a"])
    builder.build(0)
    builder.build(0)
    assert replays.watch_of("a").captured == {}


def test_groups_do_not_count_each_others_steps() -> None:
    counters = CountedInMemory()
    one, other = Builder(None, ["a"]), Builder(None, ["b"])
    captured(replays.watch_of("a"), counters, layers=1)
    for _ in range(2):
        one.build(0)
        other.build(0)
        replays.watch_of("a").calls += 1
    assert replayed(counters) == 0


def test_of_several_builders_of_a_layer_only_the_latest_counts() -> None:
    """Two micro-batches of one step build twice before the first layer is called."""
    counters = CountedInMemory()
    first, second = Builder(None, ["a"]), Builder(None, ["a"])
    captured(replays.watch_of("a"), counters, layers=1)
    first.build(0)
    second.build(0)
    replays.watch_of("a").calls += 1
    first.build(0)
    second.build(0)
    assert replayed(counters) == 0
