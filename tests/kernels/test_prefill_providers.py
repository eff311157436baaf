"""Libraries' prefill behind one interface: whose signature fits, and what they are called with.

The functions here are stand-ins: they have the real functions' signatures and compute in PyTorch.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hwtune_kernels import registry
from hwtune_kernels.prefill import varlen
from hwtune_kernels.prefill.cpu import varlen_prefill
from hwtune_kernels.prefill.npu import varlen_prefill as npu_varlen_prefill
from hwtune_kernels.prefill.varlen import Parameter, ProviderError
from hwtune_kernels.reference import batched_paged_attention

from tests.kernels.paged import make_call
from tests.kernels.test_npu_call import fia

SEEN: dict[str, Any] = {}
"""What the last stand-in was told besides tensors."""


def attend(q: Any, k: Any, v: Any, starts: Any, lengths: Any, table: Any, scale: float) -> Any:
    result = torch.empty_like(q)
    batched_paged_attention(q, k, v, table, lengths, scale, result, query_start=starts)
    return result


def stand_in_flash_attn(
    q: Any,
    k: Any,
    v: Any,
    max_seqlen_q: Any,
    cu_seqlens_q: Any,
    max_seqlen_k: Any,
    cu_seqlens_k: Any = None,
    seqused_k: Any = None,
    softmax_scale: Any = None,
    causal: Any = False,
    block_table: Any = None,
    return_softmax_lse: Any = False,
    out: Any = None,
    num_splits: int = 0,
    fa_version: int = 2,
) -> Any:
    """Of vLLM's flash_attn_varlen_func (0.18 to 0.32), what the interface touches; it fills out."""
    assert causal, "the interface is causal"
    assert cu_seqlens_k is None
    assert not return_softmax_lse
    SEEN.update(max_q=max_seqlen_q, max_k=max_seqlen_k, version=fa_version, splits=num_splits)
    return out.copy_(attend(q, k, v, cu_seqlens_q, seqused_k, block_table, softmax_scale))


def stand_in_aiter(
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    cu_seqlens_q: Any,
    max_seqlen_q: Any,
    seqused_k: Any,
    max_seqlen_k: Any,
    softmax_scale: Any,
    causal: Any,
    window_size: Any,
    block_table: Any,
    softcap: Any,
    q_descale: Any,
    k_descale: Any,
    v_descale: Any,
    sinks: Any = None,
) -> None:
    """Of AITER's unified_attention (ops/triton/attention, August 2026): it returns nothing."""
    assert causal
    assert sinks is q_descale is k_descale is v_descale is None
    SEEN.update(max_q=max_seqlen_q, max_k=max_seqlen_k, window=window_size, cap=softcap)
    out.copy_(attend(q, k, v, cu_seqlens_q, seqused_k, block_table, softmax_scale))


def stand_in_vendor(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    seqused_k: Any,
    block_table: Any,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    softmax_scale: Any = None,
    causal: Any = False,
    window_size: Any = (-1, -1),
    return_softmax_lse: Any = False,
    layout: Any = "bhsd",
) -> Any:
    """As the DCU vendor's varlen_fwd_unified is described in public: a tuple of its own tensors."""
    assert causal
    assert not return_softmax_lse
    SEEN.update(max_q=max_seqlen_q, max_k=max_seqlen_k, layout=layout, window=window_size)
    return attend(q, k, v, cu_seqlens_q, seqused_k, block_table, softmax_scale), None


STAND_INS = {
    "prefill.flash_attn": "stand_in_flash_attn",
    "prefill.aiter": "stand_in_aiter",
    "prefill.vendor": "stand_in_vendor",
}


def case() -> dict[str, Any]:
    call = make_call([40, 7, 65], new=[33, 7, 1], dtype="float32")
    return {**call, "output": torch.full_like(call["query"], float("nan"))}


def expected(call: dict[str, Any]) -> torch.Tensor:
    output = torch.full_like(call["query"], float("nan"))
    kept = {name: value for name, value in call.items() if name != "max_query_len"}
    batched_paged_attention(**{**kept, "output": output})
    return output


@pytest.mark.parametrize("name", STAND_INS)
def test_a_library_is_called_by_its_own_names(name: str) -> None:
    run = registry.load(name, provider=f"{__name__}:{STAND_INS[name]}")
    call = {"max_query_len": 33} | case()
    SEEN.clear()
    assert run(**call, max_context_len=65) is None
    torch.testing.assert_close(call["output"], expected(call))
    assert (SEEN["max_q"], SEEN["max_k"]) == (33, 65)
    if name == "prefill.vendor":
        assert SEEN["layout"] == "bshd"
    elif name == "prefill.aiter":
        assert (SEEN["window"], SEEN["cap"]) == ((-1, -1), 0.0)


def test_without_a_length_the_block_table_bounds_it() -> None:
    call = {"max_query_len": 33} | case()
    registry.load("prefill.flash_attn", provider=f"{__name__}:stand_in_flash_attn")(**call)
    assert SEEN["max_k"] == call["block_table"].shape[1] * call["key_pages"].shape[1]


def test_tuning_is_more_arguments_of_the_library() -> None:
    place = f"{__name__}:stand_in_flash_attn"
    call = {"max_query_len": 33} | case()
    registry.load("prefill.flash_attn", {"fa_version": 3}, place)(**call)
    assert (SEEN["version"], SEEN["splits"]) == (3, 0)
    with pytest.raises(ImportError, match="stand_in_flash_attn takes no pack"):
        registry.load("prefill.flash_attn", {"pack": 3}, place)


@pytest.mark.parametrize(
    "place", ["hwtune_kernels.prefill.cpu:varlen_prefill", f"{__name__}:on_a_pretended_npu"]
)
def test_our_own_providers_have_the_interface(place: str) -> None:
    call = make_call([140, 7], new=[33, 7], dtype="float32", page=128, layout="split")
    call = {"max_query_len": 33} | call | {"output": torch.full_like(call["query"], 9.0)}
    call["key_pages"], call["value_pages"] = (
        call[name].nan_to_num().contiguous() for name in ("key_pages", "value_pages")
    )
    registry.load("prefill.vendor", provider=place)(**call)
    torch.testing.assert_close(call["output"], expected(call), rtol=1e-5, atol=1e-5)


def on_a_pretended_npu(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    seqused_k: Any,
    block_table: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool,
    scale: float,
    out: Any,
) -> None:
    """The NPU's provider around the stand-in of its operator."""
    from hwtune_kernels.prefill import npu  # now: other tests import the package anew

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(npu, "_operator", lambda: fia)
        npu.varlen_prefill(
            *(q, k, v, cu_seqlens_q, seqused_k, block_table.clamp(max=k.shape[0] - 1)),
            *(max_seqlen_q, max_seqlen_k, causal, scale, out),
        )


@pytest.mark.parametrize("provider", [varlen_prefill, npu_varlen_prefill], ids=["cpu", "npu"])
def test_attention_that_is_not_causal_is_refused(provider: Callable[..., None]) -> None:
    with pytest.raises(ValueError, match="causal"):
        provider(*([torch.zeros(1)] * 6), 1, 1, False, 1.0, torch.zeros(1))


def lacks_lengths(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int,
    max_seqlen_k: int, softmax_scale: float = 0.0, causal: bool = False, block_table: Any = None,
) -> None:  # fmt: skip
    """As AITER's flash_attn_varlen_func: paged, but the lengths must be cumulative."""


def needs_more(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, kv_indptr: Any, kv_page_indices: Any,
    max_seqlen_q: int, max_seqlen_k: int, softmax_scale: float = 0.0, causal: bool = False,
    block_table: Any = None, seqlen_k: Any = None, out: Any = None,
) -> None:  # fmt: skip
    """As AITER's mha_batch_prefill_func."""


def anything(*args: Any, **kwargs: Any) -> None:
    """As a wrapper that hides what it wraps."""


def by_position(q: Any, /, k: Any) -> None:
    """Cannot be called by name."""


@pytest.mark.parametrize(
    ("provider", "reason"),
    [
        ("lacks_lengths", "takes no seqused_k or seqlen_k"),
        ("needs_more", "also needs kv_indptr, kv_page_indices"),
        ("anything", "takes no q, k, v, cu_seqlens_q, seqused_k or seqlen_k"),
        ("by_position", "takes q by position only"),
        ("SEEN", "has no signature to check"),
    ],
)
def test_a_signature_that_does_not_fit_is_one_reason(provider: str, reason: str) -> None:
    with pytest.raises(ImportError, match=reason) as caught:
        registry.load("prefill.vendor", provider=f"{__name__}:{provider}")
    assert "\n" not in str(caught.value)


def test_the_vendors_function_must_be_named() -> None:
    with pytest.raises(ImportError, match=r"prefill\.vendor needs provider = "):
        registry.load("prefill.vendor")
    with pytest.raises(ImportError, match="no_such_vendor"):
        registry.load("prefill.vendor", provider="no_such_vendor:varlen_fwd_unified")
    with pytest.raises(ValueError, match="calls no library"):
        registry.load("prefill.cpu", provider="flash_attn:varlen_fwd_unified")


def test_a_torch_operator_is_judged_by_its_schema() -> None:
    def argument(name: str, has_default: bool = False) -> Any:
        return SimpleNamespace(name=name, has_default_value=lambda: has_default)

    arguments = [*map(argument, varlen.INTERFACE), argument("out", has_default=True)]
    operator = SimpleNamespace(
        default=SimpleNamespace(_schema=SimpleNamespace(arguments=arguments))
    )
    parameters = varlen.parameters_of(operator, "torch:ops.x.y")
    assert varlen.bind(parameters, "torch:ops.x.y", {}).out
    with pytest.raises(ProviderError, match="also needs mask"):
        varlen.bind((*parameters, Parameter(name="mask", required=True)), "torch:ops.x.y", {})
    real = varlen.parameters_of(torch.ops.aten.scaled_dot_product_attention, "aten")
    assert [item.name for item in real if item.required] == ["query", "key", "value"]


def test_what_a_provider_cannot_compute_is_refused() -> None:
    run = registry.load("prefill.vendor", provider=f"{__name__}:stand_in_vendor")
    with pytest.raises(ValueError, match="computes no soft_cap, window"):
        run(**{"max_query_len": 33} | case(), window=8, soft_cap=1.0)


def wrong_shape(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, seqused_k: Any, block_table: Any,
    max_seqlen_q: int, max_seqlen_k: int, causal: bool, scale: float,
) -> Any:  # fmt: skip
    return q[:1]


def test_a_result_of_another_shape_is_not_kept() -> None:
    call = {"max_query_len": 33} | case()
    with pytest.raises(ValueError, match=r"returned \(1, 6, 64\), not \(41, 6, 64\)"):
        registry.load("prefill.vendor", provider=f"{__name__}:wrong_shape")(**call)


def test_vllms_flash_attention_has_the_signature_that_is_bound() -> None:
    """From the source of an installed vLLM, which is not imported: it needs its GPU."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed")
    file = Path(spec.origin).parent / "vllm_flash_attn/flash_attn_interface.py"
    functions = [n for n in ast.parse(file.read_text()).body if isinstance(n, ast.FunctionDef)]
    arguments = next(n for n in functions if n.name == "flash_attn_varlen_func").args
    without = len(arguments.args) - len(arguments.defaults)
    found = tuple(
        Parameter(name=item.arg, required=index < without)
        for index, item in enumerate(arguments.args)
    )
    binding = varlen.bind(found, "vllm", {"fa_version": 3})
    assert binding.out
    assert binding.names["scale"] == "softmax_scale"
    assert not binding.names.keys() - set(varlen.INTERFACE)
    names = [item.name for item in found]
    stand_in = inspect.signature(stand_in_flash_attn).parameters
    assert [name for name in names if name in stand_in] == list(stand_in)
