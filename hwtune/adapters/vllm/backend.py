"""Attention backends that carry the profile's alignment and dispatch to its kernels.

Each class here extends one of vLLM's own and changes two things: the kernel block sizes it
declares, which is how the alignment enters vLLM's page calculation
(``Platform._align_hybrid_block_size``), and ``forward``, which hands a call to a specialised
kernel exactly when the kernel's conditions hold. Everything else is vLLM's.

vLLM resolves a backend by its dotted path, so the classes are built when first asked for: a
process on a machine without Triton never imports the Triton backend.

What of vLLM this touches, and in which releases, stands in ``targets.py``; ``install`` probes it
first. It can go when vLLM lets a user state a page alignment and a kernel per shape.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from vllm.v1.attention.backend import AttentionCGSupport, AttentionType, MultipleOf

from hwtune.adapters.vllm.checked_calls import CheckedCalls
from hwtune.adapters.vllm.dispatch import BoundKernel, LayerDispatcher
from hwtune.adapters.vllm.drafts import any_prefilling, speculative_tokens
from hwtune.adapters.vllm.runtime import bind, count_fault, current_plan, mark
from hwtune.domain.kernel import CallShape, LayerTraits, is_verification


class DispatchingImpl(CheckedCalls):
    """Mixed in before a backend's own ``AttentionImpl``, whose ``forward`` it guards."""

    _hwtune: LayerDispatcher | None = None

    forward_writes_cache = False
    """Whether vLLM leaves it to ``forward`` to write a call's K and V into the cache."""

    _hwtune_drafts = 0
    """Most draft tokens per sequence."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        try:
            self._hwtune_drafts = speculative_tokens()
        except Exception as error:
            count_fault(error)  # law: nothing of ours may break a request

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        """vLLM's ``AttentionImpl.forward``, same arguments and result."""
        kernel = None
        if attn_metadata is not None:
            more = bool(args)
            for extra in kwargs.values():  # a generator would cost a frame
                more = more or extra is not None
            kernel = self._select(layer, query, kv_cache, attn_metadata, more)
            if kernel is not None:
                new = (layer, key, value) if self.forward_writes_cache else None
                if self._run(kernel, query, kv_cache, attn_metadata, output, new):
                    return output
        try:
            result: torch.Tensor = super().forward(  # type: ignore[misc]
                layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs
            )
        except Exception as error:
            if kernel is None or kernel.pending is None:
                raise
            self.serve_unchecked(kernel, attn_metadata, output, error)
            return output
        if kernel is not None and kernel.pending is not None:
            self.judge(kernel, kv_cache, attn_metadata, output)
        return result

    def _select(
        self,
        layer: Any,
        query: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: Any,
        fused_output: bool,
    ) -> BoundKernel | None:
        try:
            dispatcher = self._hwtune
            if dispatcher is None:
                traits = self.layer_traits(layer, query, kv_cache, metadata)
                dispatcher = self._hwtune = bind(getattr(layer, "layer_name", "?"), traits)
            capturing = _is_capturing(query)
            lengths = metadata.seq_lens
            key = (
                lengths.size(0) if type(lengths) is torch.Tensor else len(lengths),
                metadata.num_actual_tokens,
                metadata.max_query_len,
                getattr(metadata, "causal", True) is True,
                getattr(metadata, "dynamic_causal", None) is None,
                fused_output,
                self.other_mask(metadata),
                capturing,
                self._hwtune_drafts and any_prefilling(metadata),
            )
            return dispatcher.select_like(
                key,
                metadata.max_seq_len,
                lambda: self._call_shape(metadata, fused_output, capturing),
            )
        except Exception as error:
            # Law: nothing of ours may break a request. The layer is served by vLLM from now on.
            self._hwtune = LayerDispatcher(())
            count_fault(error)
            return None

    def _run(
        self,
        kernel: BoundKernel,
        query: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: Any,
        output: torch.Tensor,
        new: tuple[Any, torch.Tensor, torch.Tensor] | None,
    ) -> bool:
        """Whether the kernel served the call; False leaves it to vLLM's own path.

        In checked mode vLLM's path computes a share of the hits too; those wait in ``pending``.
        """
        try:
            if new is not None:
                self.write_cache(*new, kv_cache, metadata)
            capturing = _is_capturing(query)
            checked = kernel.check is not None and not capturing and kernel.check.due()
            if checked:
                self.written(metadata, output).fill_(float("nan"))  # shows what is not written
            returned = self.call_kernel(kernel.run, query, kv_cache, metadata, output)
            if returned is not None:
                _require_own_output(returned, output)
            if checked:
                kernel.pending = self.written(metadata, output).clone()
                return False
            self.count(kernel, kv_cache, metadata, capturing)
        except Exception as error:
            kernel.retire(error)
            count_fault(error, kernel.name)
            return False
        return True

    def count(
        self, kernel: BoundKernel, kv_cache: torch.Tensor, metadata: Any, capturing: bool
    ) -> None:
        """Counts a call that the kernel served, and announces the first."""
        kernel.count_hit(capturing)
        if not capturing and not kernel.announced:
            kernel.announced = True
            mark(
                f"first hit kernel={kernel.name} query={metadata.max_query_len} "
                f"context={self.context_len(metadata)} block_size={self.page_tokens(kv_cache)}"
            )

    def _call_shape(self, metadata: Any, fused_output: bool, capturing: bool) -> CallShape:
        return CallShape(
            num_sequences=len(metadata.seq_lens),
            num_tokens=metadata.num_actual_tokens,
            max_query_len=metadata.max_query_len,
            # The upper bound that vLLM has at hand: reading a length from a tensor cost more than
            # all the rest here, and a least context is a matter of speed, not of correctness.
            context_len=int(metadata.max_seq_len),
            # A tensor says it per sequence; to read it would synchronise.
            causal=getattr(metadata, "causal", True) is True
            and getattr(metadata, "dynamic_causal", None) is None,
            fused_output=fused_output,
            other_mask=self.other_mask(metadata),
            capturing=capturing,
            verification=self._hwtune_drafts > 0
            and is_verification(
                metadata.max_query_len, self._hwtune_drafts, any_prefilling(metadata)
            ),
        )

    def layer_traits(
        self, layer: Any, query: torch.Tensor, kv_cache: torch.Tensor, metadata: Any
    ) -> LayerTraits:
        """What is fixed about this layer, read from the impl that vLLM built."""
        me: Any = self
        return LayerTraits(
            num_heads=me.num_heads,
            num_kv_heads=me.num_kv_heads,
            head_size=me.head_size,
            dtype=str(query.dtype).removeprefix("torch."),
            kv_cache_dtype=str(me.kv_cache_dtype),
            block_size=self.page_tokens(kv_cache),
            decoder=me.attn_type == AttentionType.DECODER,
            sliding_window=_has_window(me.sliding_window),
            alibi=me.alibi_slopes is not None,
            soft_cap=bool(me.logits_soft_cap),
            sinks=getattr(me, "sinks", None) is not None,
            kv_sharing=getattr(me, "kv_sharing_target_layer_name", None) is not None,
        )

    def context_len(self, metadata: Any) -> int:
        """Tokens of the longest sequence, new ones included.

        ``max_seq_len`` is an upper bound: with asynchronous speculation vLLM counts draft tokens
        that may yet be rejected (0.32 gpu_model_runner.py, ``optimistic_seq_lens_cpu``).
        """
        return int(metadata.max_seq_len)

    def other_mask(self, metadata: Any) -> str:
        """A mask besides causal and window that the call brings; empty where there is none."""
        return ""

    def page_tokens(self, kv_cache: torch.Tensor) -> int:
        """Tokens per page of the cache tensor that the kernels read."""
        raise NotImplementedError

    def write_cache(
        self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: Any, metadata: Any
    ) -> None:
        """Writes a call's K and V, in releases where ``forward`` has to."""
        raise NotImplementedError

    def call_kernel(
        self, run: Any, query: torch.Tensor, kv_cache: torch.Tensor, metadata: Any, output: Any
    ) -> Any:
        """Calls a kernel with the cache in the layout that the kernels expect.

        Returns what the kernel returned: None, or the output it was given to write into.
        """
        raise NotImplementedError


def _require_own_output(returned: Any, output: torch.Tensor) -> None:
    """Raises TypeError for a result that is not the output the kernel had to write into."""
    start = getattr(returned, "data_ptr", lambda: None)()
    if start != output.data_ptr() or returned.numel() > output.numel():
        shape = tuple(getattr(returned, "shape", ()))
        message = (
            f"returned a {type(returned).__name__} {shape} of its own; a kernel writes into "
            f"output {tuple(output.shape)}"
        )
        raise TypeError(message)


def _has_window(window: Any) -> bool:
    """vLLM stores "no window" as None, -1 or (-1, -1), depending on the backend."""
    return window not in (None, -1, (-1, -1))


def _is_capturing(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def _block_sizes(base: type[Any]) -> staticmethod[..., list[Any]]:
    """The base's declaration, or the plan's alignment where there is one."""

    def get_supported_kernel_block_sizes(*args: Any, **kwargs: Any) -> list[Any]:
        alignment = current_plan().alignment_tokens
        if alignment is None:
            own: list[Any] = base.get_supported_kernel_block_sizes(*args, **kwargs)
            return own
        return [MultipleOf(alignment)]

    return staticmethod(get_supported_kernel_block_sizes)


def _supports_block_size(base: type[Any]) -> classmethod[Any, [int | None], bool]:
    """What the base supports, as far as it is a multiple of the plan's alignment."""

    def supports_block_size(cls: type[Any], block_size: int | None) -> bool:
        aligned = block_size is None or block_size % (current_plan().alignment_tokens or 1) == 0
        return aligned and bool(base.supports_block_size(block_size))

    return classmethod(supports_block_size)


def _subclass(name: str, base: type[Any], dispatch: type[DispatchingImpl]) -> type[Any]:
    # Backends from before vLLM knew the attribute all wrote the cache in forward.
    writes = bool(getattr(base, "forward_includes_kv_cache_update", True))
    own = {"__module__": __name__, "forward_writes_cache": writes}
    impl = type(f"{name}Impl", (dispatch, base.get_impl_cls()), own)
    return type(
        name,
        (base,),
        {
            "__module__": __name__,
            "get_supported_kernel_block_sizes": _block_sizes(base),
            "supports_block_size": _supports_block_size(base),
            "get_impl_cls": staticmethod(lambda: impl),
        },
    )


@functools.cache
def _cpu_backend() -> type[Any]:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    from hwtune.adapters.vllm.cpu_dispatch import CPUDispatch

    return _subclass("HwtuneCPUAttentionBackend", CPUAttentionBackend, CPUDispatch)


@functools.cache
def _triton_backend() -> type[Any]:
    from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend

    from hwtune.adapters.vllm.replays import WatchingBuilder
    from hwtune.adapters.vllm.triton_dispatch import TritonDispatch

    backend = _subclass("HwtuneTritonAttentionBackend", TritonAttentionBackend, TritonDispatch)
    own: dict[str, Any] = {"__module__": __name__}
    if current_plan().arm != "baseline":
        # A branch frozen into a graph for one long sequence and replayed on several would be
        # silently wrong, so graphs may hold single-token decodes only.
        own["_cudagraph_support"] = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
    bases = (WatchingBuilder, TritonAttentionBackend.get_builder_cls())
    builder = type("HwtuneTritonMetadataBuilder", bases, own)
    backend.get_builder_cls = staticmethod(lambda: builder)
    return backend


BACKENDS = {
    "CPU_ATTN": ("HwtuneCPUAttentionBackend", _cpu_backend),
    "TRITON_ATTN": ("HwtuneTritonAttentionBackend", _triton_backend),
}
"""vLLM's backend -> the class here that extends it."""


def __getattr__(name: str) -> Any:
    for class_name, build in BACKENDS.values():
        if name == class_name:
            return build()
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
