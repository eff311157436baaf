"""Counts vllm-ascend's ``attn_state`` of each step and the attention calls that follow.

vllm-ascend prints neither. A few methods are wrapped; each wrapper calls the original with its
arguments untouched, returns its result untouched, and adds to counters in shared memory.

Targets, read in vllm-ascend 0.18.0 (wheel), 0.23.0, 0.25.1rc1 and commit 182b75ea84:
``NPUModelRunner._build_attn_state`` and, of ``AscendAttentionBackendImpl``, ``forward_impl``,
``forward_fused_infer_attention`` and ``forward_paged_attention``. Not run on an NPU. It can go when
vllm-ascend states attn_state per step itself.

Not counted: MLA, SFA and INT8-cache layers (implementations of their own; the state is counted),
and the second model runner, which stores no state.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from hwtune.adapters.vllm.after_import import after_import
from hwtune.adapters.vllm.discovery import installed_version
from hwtune.adapters.vllm.runtime import count_fault, counters, mark
from hwtune.domain.attn_states import CALLED, FORWARD, RECORDED, RETURNED, STATE, STORED
from hwtune.domain.errors import InputError
from hwtune.domain.planning import version_tuple

VERSIONS = ((0, 18), (0, 26))
"""From the first, up to but without the second."""

FIA = "npu_fused_infer_attention_score"
FIA_WITH_SINKS = "npu_fused_infer_attention_score_v2"
PAGED = "_npu_paged_attention"

_ATTENTION = "vllm_ascend.attention.attention_v1"
_IMPL = "AscendAttentionBackendImpl"
_HOOKED = "_hwtune_counts"


class Counting:
    """The counters of this process, by operator, outcome and state. Never raises."""

    def __init__(self) -> None:
        self._slots: dict[tuple[str, str, str], int] = {}
        self._broken = False

    def add(self, kernel: str, outcome: str, state: object) -> None:
        """One more."""
        if self._broken:
            return
        try:
            key = (kernel, outcome, getattr(state, "name", None) or str(state))
            slot = self._slots.get(key)
            if slot is None:
                slot = self._slots[key] = counters().slot(*key)
            counters().view[slot] += 1
        except Exception as error:
            self._broken = True
            count_fault(error, STATE)


Wrap = Callable[[Callable[..., Any], Counting, ModuleType], Callable[..., Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One method of vllm-ascend, and what of it the wrapper relies on."""

    module: str
    owner: str
    method: str
    parameters: tuple[str, ...]
    """Its first parameters; more may follow."""
    wrap: Wrap

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.owner}.{self.method}"


def _step(original: Callable[..., Any], counting: Counting, module: ModuleType) -> Any:
    """``self.attn_state`` is what is stored; the result is what decides about prefill."""

    @functools.wraps(original)
    def build_attn_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = original(self, *args, **kwargs)
        # A subclass (310P) changes what its base returned: only the outermost method counts.
        if getattr(type(self), original.__name__, None) is build_attn_state:
            counting.add(STATE, RETURNED, state)
            counting.add(STATE, STORED, getattr(self, "attn_state", None))
        return state

    return build_attn_state


def _call(at: int, operator: Callable[[Any], str]) -> Wrap:
    """A wrapper for a method whose argument ``at`` (self not counted) is the metadata."""

    def wrap(original: Callable[..., Any], counting: Counting, module: ModuleType) -> Any:
        context = getattr(module, "_EXTRA_CTX", None)

        @functools.wraps(original)
        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            metadata = args[at] if len(args) > at else kwargs.get("attn_metadata")
            outcome = RECORDED if _is_capturing(context) else CALLED
            counting.add(operator(self), outcome, getattr(metadata, "attn_state", None))
            return original(self, *args, **kwargs)

        return forward

    return wrap


def _is_capturing(context: Any) -> bool:
    """Whether the call is recorded into a graph; vllm-ascend asks the same variable."""
    try:
        return bool(context.capturing)
    except Exception:
        return False


def _fia(impl: Any) -> str:
    """Attention sinks take the second version of the operator (attention_v1.py)."""
    return FIA if getattr(impl, "sinks", None) is None else FIA_WITH_SINKS


TARGETS = (
    Target(
        module="vllm_ascend.worker.model_runner_v1",
        owner="NPUModelRunner",
        method="_build_attn_state",
        parameters=("self", "num_reqs", "num_scheduled_tokens", "num_valid_tokens"),
        wrap=_step,
    ),
    Target(
        module="vllm_ascend._310p.model_runner_310p",
        owner="NPUModelRunner310",
        method="_build_attn_state",
        parameters=("self", "num_reqs", "num_scheduled_tokens", "num_valid_tokens"),
        wrap=_step,
    ),
    Target(
        module=_ATTENTION,
        owner=_IMPL,
        method="forward_impl",
        parameters=("self", "query", "key", "value", "kv_cache", "attn_metadata", "output"),
        wrap=_call(4, lambda impl: FORWARD),
    ),
    Target(
        module=_ATTENTION,
        owner=_IMPL,
        method="forward_fused_infer_attention",
        parameters=("self", "query", "key", "value", "attn_metadata", "output"),
        wrap=_call(3, _fia),
    ),
    Target(
        module=_ATTENTION,
        owner=_IMPL,
        method="forward_paged_attention",
        parameters=("self", "query", "attn_metadata", "output"),
        wrap=_call(1, lambda impl: PAGED),
    ),
)


def watch() -> None:
    """Hooks each module when vllm-ascend imports it. Safe to call more than once.

    Raises:
        InputError: vllm-ascend is not installed, or of a version that was not read.
    """
    version = installed_version("vllm-ascend")
    if version is None:
        message = "attn_state cannot be counted: vllm-ascend is not installed here"
        raise InputError(message)
    low, high = VERSIONS
    if not low <= version_tuple(version) < high:
        message = (
            f"attn_state cannot be counted: vllm-ascend {version} is outside "
            f"{_dotted(low)} to below {_dotted(high)}, whose sources were read"
        )
        raise InputError(message)
    counting = Counting()
    for module in dict.fromkeys(target.module for target in TARGETS):
        after_import(module, functools.partial(_hook, version=version, counting=counting))
    mark(f"observing backend=vllm-ascend version={version}")


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _hook(module: ModuleType, *, version: str, counting: Counting) -> None:
    """Wraps the targets of one module: all of them, or none with one line that says why."""
    targets = [target for target in TARGETS if target.module == module.__name__]
    try:
        owners = [(target, _probe(target, module)) for target in targets]
        for target, owner in owners:
            original = getattr(owner, target.method)
            if not getattr(original, _HOOKED, False):
                wrapper = target.wrap(original, counting, module)
                setattr(wrapper, _HOOKED, True)
                setattr(owner, target.method, wrapper)
        names = ",".join(target.name for target in targets)
        mark(f"counting target={names} version={version}")
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        mark(f"refused reason=attn_state cannot be counted: vllm-ascend {version}: {reason}")


def _probe(target: Target, module: ModuleType) -> type[Any]:
    """The class that has the method.

    Raises:
        InputError: it is missing or has other parameters.
    """
    owner = getattr(module, target.owner, None)
    method = getattr(owner, target.method, None)
    if not inspect.isclass(owner) or not callable(method):
        message = f"{module.__name__} has no {target.name}"
        raise InputError(message)
    found = tuple(inspect.signature(method).parameters)
    if found[: len(target.parameters)] != target.parameters:
        message = f"{target.name} takes ({', '.join(found)}), not ({', '.join(target.parameters)})"
        raise InputError(message)
    return owner
