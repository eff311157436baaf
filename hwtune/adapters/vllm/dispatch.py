"""Decides, per attention call, whether a specialised kernel takes it, and counts what happened.

Knows neither torch nor vLLM. One :class:`LayerDispatcher` per attention layer and process; on the
forward path it keeps no memory, takes no lock and does no I/O. What a call of some shape comes to is
decided once: between two decode steps a processor forgets most of the code, so that every function
called costs microseconds there.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from hwtune.domain.kernel import (
    OBSERVED_ONLY,
    CallShape,
    KernelConditions,
    KernelSpec,
    LayerTraits,
    call_refusal,
    static_refusal,
    tuning_for,
)

_NOT_INSTALLED = (ImportError, KeyError, AttributeError)
"""What says that an implementation is not here; anything else is a fault of it."""


class Counters(Protocol):
    """What a dispatcher needs of :class:`hwtune.io.counters.CounterFile`."""

    view: memoryview

    def slot(self, kernel: str, outcome: str, reason: str = "") -> int:
        """Index into ``view`` for a key."""
        ...


class BoundKernel:
    """A kernel and one layer: where its hits and refusals are counted."""

    def __init__(
        self,
        spec: KernelSpec,
        run: Callable[..., Any] | None,
        refusal: str | None,
        counters: Counters,
    ) -> None:
        self.name = spec.name
        self.when: KernelConditions = spec.when
        self.run = run
        """None in the baseline arm: the kernel is watched, not run."""
        self.refusal = refusal
        """Why this kernel can never take this layer; None when it can."""
        self._counters = counters
        self._slots: dict[str, int] = {}
        self._hit = counters.slot(spec.name, "hit")
        self._captured = counters.slot(spec.name, "captured")
        self.announced = False
        self.check: Any = None
        """A :class:`hwtune.adapters.vllm.checked.HitCheck` in checked mode."""
        self.pending: Any = None
        """The kernel's output of a call that vLLM's own path is to compute too."""

    def refusal_slot(self, reason: str) -> int:
        """Where calls that went to vLLM's own path for a reason are counted."""
        slot = self._slots.get(reason)
        if slot is None:
            slot = self._slots[reason] = self._counters.slot(self.name, "fallback", reason)
        return slot

    def count_hit(self, capturing: bool) -> None:
        """One more call that the kernel served (or that a graph recorded)."""
        self._counters.view[self._captured if capturing else self._hit] += 1

    def count_replay(self) -> None:
        """One more replay of a graph that holds a call of the kernel."""
        self._counters.view[self._counters.slot(self.name, "replayed")] += 1

    def retire(self, error: BaseException) -> None:
        """The kernel raised or computed wrongly: out of service in this layer from now on."""
        self.pending = None
        self.refusal = f"raised {type(error).__name__} before"


Decision: TypeAlias = tuple[BoundKernel | None, tuple[int, ...]]
"""The kernel that takes a call, and where the refusals of the others are counted."""
_MOST_KNOWN = 1024
"""Decisions kept per layer; a server sees some hundreds of batch shapes."""


class LayerDispatcher:
    """The kernels of one layer, in the plan's order."""

    def __init__(self, kernels: tuple[BoundKernel, ...], counters: Counters | None = None) -> None:
        self.kernels = kernels
        self._counters = counters
        self._known: dict[tuple[object, ...], Decision] = {}
        self._limits = sorted({kernel.when.min_context_len for kernel in kernels})

    def select(self, call: CallShape) -> BoundKernel | None:
        """The first kernel that takes the call; each one that does not counts why."""
        return self._count(self._decide(call))

    def select_like(
        self, key: tuple[object, ...], context_len: int, describe: Callable[[], CallShape]
    ) -> BoundKernel | None:
        """The same as ``select(describe())``, from memory when a call like it came before.

        Args:
            key: everything that ``describe`` depends on, the context length left out.
            context_len: tokens; it matters only to which kernels' least contexts it reaches.
            describe: gives the call.
        """
        whole = (key, bisect.bisect_right(self._limits, context_len))
        known = self._known.get(whole)
        if known is None or (known[0] is not None and known[0].refusal is not None):
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[whole] = self._decide(describe())
        chosen, slots = known
        if slots:
            view = self._counters.view  # type: ignore[union-attr]
            for slot in slots:
                view[slot] += 1
        return chosen

    def _decide(self, call: CallShape) -> Decision:
        chosen = None
        slots = []
        for kernel in self.kernels:
            reason = kernel.refusal or call_refusal(kernel.when, call)
            if reason is None and kernel.run is None:
                reason = OBSERVED_ONLY
            if reason is not None:
                slots.append(kernel.refusal_slot(reason))
            elif chosen is None:
                chosen = kernel
            else:
                slots.append(kernel.refusal_slot(f"taken by {chosen.name}"))
        return chosen, tuple(slots)

    def _count(self, decision: Decision) -> BoundKernel | None:
        chosen, slots = decision
        if slots and self._counters is not None:
            view = self._counters.view
            for slot in slots:
                view[slot] += 1
        return chosen


def bind_layer(
    kernels: tuple[KernelSpec, ...],
    layer: LayerTraits,
    load: Callable[[KernelSpec], Callable[..., Any] | None],
    counters: Counters,
    on_fault: Callable[[Exception, str], None] = lambda error, kernel: None,
) -> LayerDispatcher:
    """Decides once what never changes for a layer.

    Args:
        kernels: the plan's kernels.
        layer: traits of the layer, its real page included.
        load: gives a kernel's function, None to only observe it; raises ImportError, KeyError or
            AttributeError when the implementation is not to be had here.
        counters: where calls are counted.
        on_fault: told what else a kernel's module or class raised, and the kernel's name.
    """
    bound = []
    for spec in kernels:
        refusal = static_refusal(spec.when, layer)
        run = None
        if refusal is None:
            try:
                run = load(_tuned(spec, layer))
            except Exception as error:
                refusal = f"implementation {spec.implementation} unavailable: {_text(error)}"
                if not isinstance(error, _NOT_INSTALLED):
                    on_fault(error, spec.name)
        bound.append(BoundKernel(spec, run, refusal, counters))
    return LayerDispatcher(tuple(bound), counters)


def _tuned(spec: KernelSpec, layer: LayerTraits) -> KernelSpec:
    if not spec.tuned:
        return spec
    tuning = tuning_for(spec, layer.head_size, layer.block_size)
    return dataclasses.replace(spec, tuning=tuning)


def _text(error: Exception) -> str:
    """One line, short enough to be the key of a counter."""
    return " ".join(str(error).split())[:200] or type(error).__name__
