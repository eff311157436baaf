"""vLLM's CPU cache in both layouts: read as written, written as vLLM writes, misreading refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from tests.plugin.test_dispatching_impl import (
    GENERIC,
    KERNEL,
    bound,
    faults,
    forward,
    impl,
    marks,
)

if TYPE_CHECKING:
    import torch

__all__ = ["faults", "marks"]  # fixtures that every test here uses

BLOCKS, KV_HEADS, BLOCK, HEAD = 3, 2, 64, 32


def halves() -> torch.Tensor:
    """0.18 to 0.22: K and V apart, a page's two halves adjacent as hybrid models lay them."""
    import torch

    pages = torch.zeros(BLOCKS, 2, KV_HEADS, BLOCK, HEAD, dtype=torch.bfloat16)
    return pages.transpose(0, 1)


def rows() -> torch.Tensor:
    """Since 0.23: one row of K and V per page and head."""
    import torch

    return torch.zeros(BLOCKS, KV_HEADS, BLOCK, 2 * HEAD, dtype=torch.bfloat16)


def write(cache: torch.Tensor, slots: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Has the installed vLLM write random K and V at slots."""
    import torch

    from hwtune.adapters.vllm import cpu_cache

    shape = (len(slots), KV_HEADS, HEAD)
    key, value = torch.randn(2, *shape, dtype=torch.float32).to(torch.bfloat16).unbind(0)
    layer = SimpleNamespace(isa="vec", _k_scale_float=1.0, _v_scale_float=1.0)
    metadata = SimpleNamespace(slot_mapping=torch.tensor(slots))
    owner = SimpleNamespace(head_size=HEAD, kv_cache_dtype="auto")
    cpu_cache.write(owner, layer, key, value, cache, metadata)
    return key, value


@pytest.mark.parametrize("make", [halves, rows])
def test_the_kernels_read_what_vllm_wrote(make: type[torch.Tensor]) -> None:
    from hwtune.adapters.vllm import cpu_cache

    cache = make()
    slots = [2 * BLOCK + 5, BLOCK - 1, 2 * BLOCK + 6]
    key, value = write(cache, slots)
    keys, values = cpu_cache.key_and_value_pages(cache, HEAD)
    assert keys.shape == (BLOCKS, KV_HEADS, HEAD, BLOCK)
    assert values.shape == (BLOCKS, KV_HEADS, BLOCK, HEAD)
    assert cpu_cache.page_tokens(cache) == BLOCK
    for row, slot in enumerate(slots):
        page, place = divmod(slot, BLOCK)
        assert keys[page, :, :, place].equal(key[row])
        assert values[page, :, place].equal(value[row])
    assert int((keys != 0).sum()) <= len(slots) * KV_HEADS * HEAD


@pytest.mark.parametrize("make", [halves, rows])
def test_a_packing_that_reads_back_is_accepted(make: type[torch.Tensor]) -> None:
    from hwtune.adapters.vllm.cpu_cache import misread

    assert misread(make(), HEAD, "vec") is None


def test_a_packing_that_reads_back_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from hwtune.adapters.vllm import cpu_cache

    def transposed(key, value, keys, values, slots, isa):  # type: ignore[no-untyped-def]
        keys[0].copy_(key.transpose(0, 1))
        values[0].copy_(value.transpose(0, 1))

    cpu_cache._misread.cache_clear()
    monkeypatch.setattr(cpu_cache, "_reshape_and_cache", lambda: transposed)
    assert cpu_cache.misread(rows(), HEAD, "vec") == "cache packing vec"
    cpu_cache._misread.cache_clear()


def test_a_cache_without_a_named_packing_or_of_bytes_is_refused() -> None:
    import torch

    from hwtune.adapters.vllm.cpu_cache import misread

    assert misread(rows(), HEAD, None) == "cache packing None"
    assert misread(rows().to(torch.uint8), HEAD, "vec") == "cache packing vec"


def test_the_first_owner_that_names_the_packing_counts() -> None:
    from hwtune.adapters.vllm.cpu_cache import packing

    nameless, vec, amx = SimpleNamespace(), SimpleNamespace(isa="vec"), SimpleNamespace(isa="amx")
    assert packing(nameless, vec, amx) == "vec"
    assert packing(nameless) is None


def test_where_forward_writes_the_cache_the_kernel_finds_it_written() -> None:
    order: list[str] = []

    def kernel(output: torch.Tensor) -> None:
        order.append("kernel")
        output.fill_(KERNEL)

    dispatcher, _ = bound(kernel)
    built = impl(dispatcher)
    built.forward_writes_cache = True
    built.write_cache = lambda *_: order.append("write")
    assert forward(built) == KERNEL
    assert order == ["write", "kernel"]


def test_a_cache_that_cannot_be_written_leaves_the_call_to_vllm() -> None:
    dispatcher, counters = bound(lambda output: output.fill_(KERNEL))
    built = impl(dispatcher)
    built.forward_writes_cache = True  # and nothing here overrides write_cache
    assert forward(built) == GENERIC
    assert counters.counts()["page_decode", "hit", ""] == 0
