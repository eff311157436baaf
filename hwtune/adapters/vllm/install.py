"""Puts the plan's backend into vLLM's registry, after making sure that it fits.

What it touches stands in ``targets.py``. All of it is probed in the sources of the vLLM that runs
before anything is touched: a vLLM that does not fit is left as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import vllm

from hwtune.adapters.vllm.runtime import current_plan, mark
from hwtune.adapters.vllm.source_probe import misfits
from hwtune.adapters.vllm.targets import BACKEND_PATCHES, Patch
from hwtune.domain.errors import InputError
from hwtune.domain.launch import LaunchPlan


def install() -> None:
    """Registers the backend and says so.

    Raises:
        InputError: the plan does not fit this vLLM; nothing was changed.
    """
    plan = current_plan()
    patch = _patch(plan)
    _require_fit(patch)
    extended = _registry_entry(plan.backend_to_extend)
    target = _target_entry(plan, extended)
    for entry in {extended, target}:
        _require_vllms_own(entry)
    if plan.arm == "candidate":
        _probe_alignment(plan, extended)
    own_class = _own_class(patch)
    _register(target, own_class)
    tested = "yes" if vllm.__version__.split("+")[0] in patch.tested_on else "no"
    fit = f"vllm={vllm.__version__} tested={tested}"
    if plan.arm == "baseline":
        mark(f"observing backend={plan.backend_to_extend} {fit}")
        return
    kernels = ",".join(spec.name for spec in plan.kernels) or "-"
    mark(
        f"registered backend={plan.expect.backend} class={own_class} "
        f"alignment={plan.alignment_tokens} kernels={kernels} {fit}"
    )


def _own_class(patch: Patch) -> str:
    """Built now: what does not fit is refused here, not in vLLM."""
    from hwtune.adapters.vllm import backend as backends

    own_class = backends.BACKENDS[patch.name][0]
    getattr(backends, own_class)
    return own_class


def _register(entry: Any, own_class: str) -> None:
    from vllm.v1.attention.backends.registry import register_backend

    register_backend(entry, f"hwtune.adapters.vllm.backend.{own_class}")


def _patch(plan: LaunchPlan) -> Patch:
    if plan.backend_to_extend not in BACKEND_PATCHES:
        known = ", ".join(BACKEND_PATCHES)
        message = f"hwtune extends {known}; the profile names {plan.backend_to_extend}"
        raise InputError(message)
    return BACKEND_PATCHES[plan.backend_to_extend]


def _require_fit(patch: Patch) -> None:
    found = misfits(Path(vllm.__file__).parent, patch.targets)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        message = (
            f"vLLM {vllm.__version__} does not fit the {patch.name} patch: {found[0]}{more}; "
            f"its targets were found in {patch.found_in}"
        )
        raise InputError(message)


def _registry_entry(name: str) -> Any:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    try:
        return AttentionBackendEnum[name]
    except KeyError as error:
        message = f"this vLLM has no attention backend {name}: {error}"
        raise InputError(message) from None


def _require_vllms_own(entry: Any) -> None:
    """Another plugin's backend is not displaced: it would be gone without a word."""
    try:
        path = str(entry.get_path())
    except ValueError:
        return  # CUSTOM, and nobody has registered it
    if path not in (str(entry.value), "") and not path.startswith("hwtune."):
        message = (
            f"attention backend {entry.name} is already {path}, from another plugin; leave that "
            "plugin out with VLLM_PLUGINS, or serve without this profile's kernels"
        )
        raise InputError(message)


def _probe_alignment(plan: LaunchPlan, entry: Any) -> None:
    """The alignment must be a size that vLLM's own backend can also serve on fall-back."""
    alignment = plan.alignment_tokens
    if alignment is None:
        return
    base = entry.get_class()
    if base.__module__.startswith("hwtune."):
        return  # registered before in this process
    if not base.supports_block_size(alignment):
        sizes = base.get_supported_kernel_block_sizes()
        message = (
            f"{plan.backend_to_extend} serves block sizes {sizes}, "
            f"the profile's alignment {alignment} is none of them"
        )
        raise InputError(message)


def _target_entry(plan: LaunchPlan, extended: Any) -> Any:
    """The registry entry that hwtune's class goes into."""
    own = plan.arm == "candidate" and plan.expect.backend != plan.backend_to_extend
    return _registry_entry(str(plan.expect.backend)) if own else extended
