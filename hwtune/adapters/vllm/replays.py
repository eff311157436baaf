"""Counts the replays of graphs that hold one of our kernels, from outside the graph.

A replayed graph runs no Python, so nothing in it can count. But vLLM builds the attention metadata
of every step, and a step whose layers were then not called ran as a graph: the kernels that were
called when graphs were captured ran in it, once per layer. The last step is counted as the next
one begins.

Target: ``AttentionMetadataBuilder.build`` of vLLM 0.18 to 0.32, called once per step and group of
layers before their ``forward``. Not run with a real graph yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hwtune.adapters.vllm.dispatch import BoundKernel
from hwtune.adapters.vllm.drafts import tell_prefilling
from hwtune.adapters.vllm.runtime import count_fault


class ReplayWatch:
    """The layers of one metadata builder."""

    def __init__(self) -> None:
        self.owner: object = None
        """The builder that counts steps; the latest, where vLLM made several for the same layers.
        Steps of the others are not seen, so that counts can only be too low."""
        self.calls = 0
        """Calls of the layers' ``forward`` since the step began."""
        self.captured: dict[int, BoundKernel] = {}
        self._stepping = False

    def begin_step(self, owner: object) -> None:
        """A step's metadata is built: the step before it is over."""
        if owner is not self.owner:
            return
        if self._stepping and not self.calls:
            for kernel in self.captured.values():
                kernel.count_replay()
        self._stepping = True
        self.calls = 0


_WATCHES: dict[str, ReplayWatch] = {}


def watch_layers(names: Sequence[str], owner: object) -> ReplayWatch:
    """The watch of a builder's layers."""
    watch = next((_WATCHES[name] for name in names if name in _WATCHES), None) or ReplayWatch()
    watch.owner = owner
    _WATCHES.update(dict.fromkeys(names, watch))
    return watch


def watch_of(name: str) -> ReplayWatch:
    """The watch of a layer; one that sees no steps where no builder of ours has the layer."""
    return _WATCHES.get(name) or ReplayWatch()


class WatchingBuilder:
    """Mixed in before a backend's own metadata builder."""

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, *args, **kwargs)  # type: ignore[call-arg]
        self._hwtune_watch = watch_layers(layer_names, self)

    def build(self, common_prefix_len: int, *args: Any, **kwargs: Any) -> Any:
        """vLLM's ``build``, same arguments and result; the metadata also tells who prefills."""
        try:
            self._hwtune_watch.begin_step(self)
        except Exception as error:
            count_fault(error)  # law: nothing of ours may break a request
        metadata = super().build(common_prefix_len, *args, **kwargs)  # type: ignore[misc]
        try:
            tell_prefilling(args[0] if args else kwargs.get("common_attn_metadata"), metadata)
        except Exception as error:
            count_fault(error)
        return metadata
