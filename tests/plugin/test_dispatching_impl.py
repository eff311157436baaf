"""``forward`` around a kernel that raises, returns, or is given more than attention."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from hwtune.adapters.vllm.dispatch import LayerDispatcher, bind_layer
from tests.plugin.test_dispatch import DECODE, PREFILL, CountedInMemory, layer

if TYPE_CHECKING:
    import torch

GENERIC, KERNEL = 1.0, 2.0


class VllmsOwnImpl:
    """Stands for a backend's AttentionImpl; its forward writes ones."""

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        output: torch.Tensor = args[6] if len(args) > 6 else kwargs["output"]
        return output.fill_(GENERIC)


def impl(dispatcher: LayerDispatcher) -> Any:
    from hwtune.adapters.vllm.backend import DispatchingImpl

    class Impl(DispatchingImpl, VllmsOwnImpl):
        head_size = 1

        def page_tokens(self, kv_cache: torch.Tensor) -> int:
            return 832

        def call_kernel(self, run: Any, *args: Any) -> Any:
            return run(args[-1])

    built = Impl()
    built._hwtune = dispatcher
    return built


def bound(run: Any) -> tuple[LayerDispatcher, CountedInMemory]:
    counters = CountedInMemory()
    return bind_layer((PREFILL, DECODE), layer(), lambda spec: run, counters), counters


def forward(built: Any, query_len: int = 1, **more: Any) -> float:
    import torch

    metadata = SimpleNamespace(
        seq_lens=[query_len],
        num_actual_tokens=query_len,
        max_query_len=query_len,
        max_seq_len=query_len,
        causal=True,
    )
    tensor = torch.zeros(query_len, 1)
    output = torch.zeros(query_len, 1)
    result = built.forward(None, tensor, tensor, tensor, tensor, metadata, output, **more)
    return float(result.max())


@pytest.fixture(autouse=True)
def marks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr("hwtune.adapters.vllm.backend.mark", said.append)
    monkeypatch.setattr("hwtune.adapters.vllm.runtime.mark", said.append)
    return said


@pytest.fixture(autouse=True)
def faults(monkeypatch: pytest.MonkeyPatch) -> CountedInMemory:
    counted = CountedInMemory()
    monkeypatch.setattr("hwtune.adapters.vllm.runtime.counters", lambda: counted)
    return counted


def test_a_kernel_that_takes_the_call_computes_it(marks: list[str]) -> None:
    dispatcher, counters = bound(lambda output: output.fill_(KERNEL))
    assert forward(impl(dispatcher)) == KERNEL
    assert counters.counts()["page_decode", "hit", ""] == 1
    assert marks == ["first hit kernel=page_decode query=1 context=1 block_size=832"]


def test_the_first_hit_is_announced_once(marks: list[str]) -> None:
    dispatcher, _ = bound(lambda output: output.fill_(KERNEL))
    built = impl(dispatcher)
    forward(built)
    forward(built)
    assert len(marks) == 1


def test_a_kernel_that_raises_is_served_by_vllm_counted_and_said_once(
    marks: list[str], faults: CountedInMemory
) -> None:
    def broken(output: torch.Tensor) -> None:
        output.fill_(float("nan"))
        message = "no such\nvendor symbol"
        raise RuntimeError(message)

    dispatcher, counters = bound(broken)
    built = impl(dispatcher)
    assert forward(built) == GENERIC
    assert forward(built) == GENERIC
    assert faults.counts() == {("page_decode", "fault", "RuntimeError"): 1}
    assert counters.counts()["page_decode", "hit", ""] == 0
    assert marks == ["fault kernel=page_decode error=RuntimeError: no such vendor symbol"]


def test_a_kernel_that_returns_its_result_instead_of_writing_it_is_a_fault(
    marks: list[str], faults: CountedInMemory
) -> None:
    import torch

    dispatcher, counters = bound(lambda output: torch.full((3, 1), KERNEL))
    assert forward(impl(dispatcher)) == GENERIC
    assert faults.counts() == {("page_decode", "fault", "TypeError"): 1}
    assert counters.counts()["page_decode", "hit", ""] == 0
    assert "returned a Tensor (3, 1) of its own; a kernel writes into output (1, 1)" in marks[0]


def test_a_kernel_may_return_the_output_it_was_given() -> None:
    dispatcher, counters = bound(lambda output: output.fill_(KERNEL))
    assert forward(impl(dispatcher)) == KERNEL
    assert counters.counts()["page_decode", "hit", ""] == 1


def test_fused_output_quantisation_is_left_to_vllm() -> None:
    dispatcher, counters = bound(lambda output: output.fill_(KERNEL))
    assert forward(impl(dispatcher), output_scale=1.0) == GENERIC
    assert counters.counts()["page_decode", "fallback", "fused output quantisation"] == 1


def test_a_layer_that_cannot_be_read_is_left_to_vllm_and_counted(
    marks: list[str], faults: CountedInMemory
) -> None:
    built = impl(LayerDispatcher(()))
    built._hwtune = None  # binding reads attributes that this object does not have
    assert forward(built) == GENERIC
    assert forward(built) == GENERIC
    assert len(marks) == 1
    assert marks[0].startswith("fault kernel=- error=AttributeError")
    assert faults.counts() == {("-", "fault", "AttributeError"): 1}
