"""How a layer learns that a step verifies drafts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hwtune.adapters.vllm import drafts, replays
from hwtune.adapters.vllm.backend import DispatchingImpl


class VllmsBuilder:
    """Stands for a backend's metadata builder."""

    def __init__(self, spec: Any, names: list[str], config: Any) -> None:
        pass

    def build(self, common_prefix_len: int, common_attn_metadata: Any) -> Any:
        query = common_attn_metadata.query
        return SimpleNamespace(
            seq_lens=[900],
            num_actual_tokens=query,
            max_query_len=query,
            max_seq_len=900,
            causal=True,
        )


class Builder(replays.WatchingBuilder, VllmsBuilder):
    pass


class VllmsImpl:
    """Stands for a backend's AttentionImpl."""

    def __init__(self, num_heads: int) -> None:
        self.num_heads = num_heads


class Impl(DispatchingImpl, VllmsImpl):
    pass


@pytest.fixture
def impl(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("hwtune.adapters.vllm.backend.speculative_tokens", lambda: 3)
    return Impl(24)


@pytest.mark.parametrize(
    ("query", "prefilling", "verifies"),
    [(4, [False], True), (4, [True], False), (5, [False], False), (4, None, True)],
)
def test_a_step_verifies_when_no_sequence_of_it_has_prompt_left(
    impl: Any, query: int, prefilling: list[bool] | None, verifies: bool
) -> None:
    told = None if prefilling is None else torch.tensor(prefilling)
    common = SimpleNamespace(query=query, is_prefilling=told)
    metadata = Builder(None, ["a"], None).build(0, common_attn_metadata=common)
    assert impl._call_shape(metadata, False, False).verification is verifies
    positional = Builder(None, ["a"], None).build(0, common)
    assert impl._call_shape(positional, False, False).verification is verifies


def test_without_speculation_nothing_verifies() -> None:
    built: Any = Impl(24)
    metadata = Builder(None, ["a"], None).build(0, SimpleNamespace(query=4))
    assert built.num_heads == 24
    assert not built._call_shape(metadata, False, False).verification


def test_a_configuration_that_cannot_be_read_breaks_no_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Exception] = []

    def broken() -> int:
        message = "no such attribute"
        raise AttributeError(message)

    monkeypatch.setattr("hwtune.adapters.vllm.backend.speculative_tokens", broken)
    monkeypatch.setattr("hwtune.adapters.vllm.backend.count_fault", seen.append)
    assert Impl(24).num_heads == 24
    assert [str(error) for error in seen] == ["no such attribute"]


def test_the_number_of_drafts_is_vllms_own() -> None:
    assert drafts.drafts_of(SimpleNamespace(speculative_config=None)) == 0
    config = SimpleNamespace(speculative_config=SimpleNamespace(num_speculative_tokens=3))
    assert drafts.drafts_of(config) == 3


def test_a_flag_on_the_device_is_not_waited_for() -> None:
    metadata = SimpleNamespace()
    drafts.tell_prefilling(
        SimpleNamespace(is_prefilling=torch.ones(1, dtype=torch.bool, device="meta")), metadata
    )
    assert drafts.any_prefilling(metadata) is None
