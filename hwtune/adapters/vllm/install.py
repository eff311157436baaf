"""Puts the plan's backend into vLLM's registry, after making sure that it fits.

Target: ``vllm.v1.attention.backends.registry.register_backend`` (vLLM 0.12 and newer) and the
``AttentionBackend`` interface of 0.32. Each is probed before anything is touched.
"""

from __future__ import annotations

from typing import Any

from hwtune.adapters.vllm import backend as backends
from hwtune.adapters.vllm.runtime import current_plan, mark
from hwtune.domain.errors import InputError
from hwtune.domain.launch import LaunchPlan


def install() -> None:
    """Registers the backend and says so.

    Raises:
        InputError: the plan does not fit this vLLM; nothing was changed.
    """
    plan = current_plan()
    own_class = _own_class(plan)
    entry = _registry_entry(plan.backend_to_extend)
    if plan.arm == "candidate":
        _probe_alignment(plan, entry)
    getattr(backends, own_class)  # built now: what does not fit is refused here, not in vLLM
    _register(plan, entry, own_class)
    if plan.arm == "baseline":
        mark(f"observing backend={plan.backend_to_extend}")
        return
    kernels = ",".join(spec.name for spec in plan.kernels) or "-"
    mark(
        f"registered backend={plan.expect.backend} class={own_class} "
        f"alignment={plan.alignment_tokens} kernels={kernels}"
    )


def _own_class(plan: LaunchPlan) -> str:
    if plan.backend_to_extend not in backends.BACKENDS:
        known = ", ".join(backends.BACKENDS)
        message = f"hwtune extends {known}; the profile names {plan.backend_to_extend}"
        raise InputError(message)
    return backends.BACKENDS[plan.backend_to_extend][0]


def _registry_entry(name: str) -> Any:
    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum

        return AttentionBackendEnum[name]
    except (ImportError, KeyError) as error:
        message = f"this vLLM has no attention backend {name}: {error}"
        raise InputError(message) from None


def _probe_alignment(plan: LaunchPlan, entry: Any) -> None:
    """The alignment must be a size that vLLM's own backend can also serve on fall-back."""
    alignment = plan.alignment_tokens
    if alignment is None:
        return
    base = entry.get_class()
    if base.__module__ == backends.__name__:
        return  # registered before in this process
    if not base.supports_block_size(alignment):
        sizes = base.get_supported_kernel_block_sizes()
        message = (
            f"{plan.backend_to_extend} serves block sizes {sizes}, "
            f"the profile's alignment {alignment} is none of them"
        )
        raise InputError(message)


def _register(plan: LaunchPlan, entry: Any, own_class: str) -> None:
    from vllm.v1.attention.backends.registry import register_backend

    own_entry = plan.arm == "candidate" and plan.expect.backend != plan.backend_to_extend
    target = _registry_entry(str(plan.expect.backend)) if own_entry else entry
    register_backend(target, f"{backends.__name__}.{own_class}")
