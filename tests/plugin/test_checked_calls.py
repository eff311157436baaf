"""``forward`` in checked mode: vLLM's own path beside a share of the hits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hwtune.adapters.vllm.dispatch import LayerDispatcher, bind_layer
from hwtune.domain.checking import KernelCheck
from hwtune.io.check_slots import CheckFile, read_checks
from tests.plugin.test_dispatch import DECODE, PREFILL, CountedInMemory, layer
from tests.plugin.test_dispatching_impl import GENERIC, forward, impl

if TYPE_CHECKING:
    import torch

CLOSE, WRONG = GENERIC * 1.005, GENERIC * 1.03


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


class Checked:
    """A layer whose kernels run in checked mode, and what was recorded of it."""

    def __init__(self, run_dir: Path, run: Any, rate: float = 1.0) -> None:
        from hwtune.adapters.vllm.checked import HitCheck

        self.run_dir = run_dir
        self.counters = CountedInMemory()
        self.dispatcher: LayerDispatcher = bind_layer(
            (PREFILL, DECODE), layer(), lambda spec: run, self.counters
        )
        file = CheckFile(run_dir, "n", print)
        for kernel in self.dispatcher.kernels:
            kernel.check = HitCheck("l3", rate, 0.02, file.row(kernel.name, "l3", 0.02))
        self.impl = impl(self.dispatcher)

    def forward(self, query_len: int = 1) -> float:
        return forward(self.impl, query_len)

    def decode(self) -> KernelCheck:
        (row,) = [row for row in read_checks(self.run_dir) if row.kernel == "page_decode"]
        return row

    def hits(self) -> int:
        return self.counters.counts()["page_decode", "hit", ""]


def fill(value: float) -> Any:
    return lambda output: output.fill_(value)


def test_an_equal_kernel_serves_the_call_as_it_would_unchecked(tmp_path: Path) -> None:
    checked = Checked(tmp_path, fill(CLOSE))
    assert checked.forward() == pytest.approx(CLOSE)
    assert (checked.hits(), checked.decode().checked, checked.decode().failed) == (1, 1, 0)
    assert checked.decode().worst_relative == pytest.approx(0.005, rel=1e-3)


def test_a_kernel_that_differs_is_not_served_not_a_hit_and_out_of_service(
    tmp_path: Path, marks: list[str], faults: CountedInMemory
) -> None:
    checked = Checked(tmp_path, fill(WRONG))
    assert [checked.forward(), checked.forward()] == [GENERIC, GENERIC]
    assert (checked.hits(), checked.decode().checked, checked.decode().failed) == (0, 1, 1)
    assert faults.counts() == {("page_decode", "fault", "KernelDiffersError"): 1}
    reason = "raised KernelDiffersError before"
    assert checked.counters.counts()["page_decode", "fallback", reason] == 1
    assert "relative error 0.03 above 0.02 (layer l3" in marks[0]
    assert marks[0].endswith("the request got vLLM's own output")


def test_nan_is_found_where_no_difference_can_be(tmp_path: Path) -> None:
    checked = Checked(tmp_path, fill(float("nan")))
    assert checked.forward() == GENERIC
    assert (checked.decode().failed, checked.decode().non_finite) == (1, 1)


def test_what_the_kernel_does_not_write_is_found(tmp_path: Path) -> None:
    """An output left as it was may hold the right numbers of an earlier call."""

    def half(output: torch.Tensor) -> None:
        output[: len(output) // 2] = GENERIC

    checked = Checked(tmp_path, half)
    assert checked.forward(query_len=300) == GENERIC
    (prefill,) = [row for row in read_checks(tmp_path) if row.kernel == "vendor_prefill"]
    assert (prefill.failed, prefill.non_finite, prefill.worst_query_len) == (1, 150, 300)


@pytest.mark.parametrize(("rate", "compared"), [(1.0, 20), (0.5, 10), (0.1, 2), (0.001, 1)])
def test_the_share_is_kept_and_the_first_hit_is_always_compared(
    tmp_path: Path, rate: float, compared: int
) -> None:
    checked = Checked(tmp_path, fill(CLOSE), rate)
    for _ in range(20):
        assert checked.forward() == pytest.approx(CLOSE)
    assert (checked.hits(), checked.decode().checked) == (20, compared)


def test_a_kernel_that_raises_leaves_nothing_to_compare(tmp_path: Path) -> None:
    def broken(output: torch.Tensor) -> None:
        message = "no such symbol"
        raise RuntimeError(message)

    checked = Checked(tmp_path, broken)
    assert [checked.forward(), checked.forward()] == [GENERIC, GENERIC]
    assert checked.decode().checked == 0


def test_a_hit_stands_when_only_the_comparison_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: CountedInMemory
) -> None:
    checked = Checked(tmp_path, fill(CLOSE))

    def raising(*args: Any, **kwargs: Any) -> None:
        message = "vLLM cannot"
        raise RuntimeError(message)

    monkeypatch.setattr("tests.plugin.test_dispatching_impl.VllmsOwnImpl.forward", raising)
    assert [checked.forward(), checked.forward()] == [pytest.approx(CLOSE)] * 2
    assert checked.hits() == 2
    assert faults.counts() == {("page_decode", "fault", "UncheckableError"): 1}


def test_both_sides_infinite_alike_is_no_difference() -> None:
    import torch

    from hwtune.adapters.vllm.checked import difference_of

    theirs = torch.tensor([[[1.0, float("inf")]], [[float("nan"), 2.0]]])
    assert difference_of(theirs.clone(), theirs).non_finite == 0
    assert difference_of(-theirs, theirs).non_finite == 1  # the infinity; NaN has no sign
    zeros = torch.zeros(2, 1, 2)
    assert difference_of(zeros, zeros).relative == 0
    assert difference_of(zeros + 1e-3, zeros).relative == 1e9


def test_an_error_in_a_small_row_is_not_hidden_by_a_large_one() -> None:
    import torch

    from hwtune.adapters.vllm.checked import difference_of

    theirs = torch.ones(2, 1, 4)
    theirs[1] = 0.01
    ours = theirs.clone()
    ours[1, 0, 2] *= 1.5
    assert difference_of(ours, theirs).relative == pytest.approx(0.5, rel=1e-3)
