"""Entry point ``vllm.general_plugins``: vLLM calls :func:`register` in each of its processes.

Without ``HWTUNE_PLAN`` it reads one environment variable and returns. With it, it never raises
into vLLM: what does not fit is refused with one marker line, and vLLM goes on as it is.
"""

from __future__ import annotations

import os

_PLAN = "HWTUNE_PLAN"  # hwtune.domain.launch.PLAN_ENVIRONMENT_VARIABLE, without the import


def register() -> None:
    """Installs the backend that the plan asks for. Safe to call more than once."""
    if not os.environ.get(_PLAN):
        return
    try:
        _install()
    except Exception as error:
        _refuse(error)


def _install() -> None:
    from hwtune.adapters.vllm.runtime import current_plan

    plan = current_plan()
    if plan.count_attn_state:
        from hwtune.adapters.vllm.ascend_hook import watch

        watch()
    if plan.backend_to_extend:
        from hwtune.adapters.vllm.install import install

        install()


def _refuse(error: Exception) -> None:
    from vllm.logger import init_logger

    reason = " ".join(str(error).split()) or type(error).__name__
    init_logger("vllm.hwtune").error("hwtune[%s] refused reason=%s", _nonce(), reason)


def _nonce() -> str:
    """The run's nonce; "unreadable" when the plan itself is what is broken."""
    try:
        from hwtune.adapters.vllm.runtime import current_plan

        return current_plan().nonce
    except Exception:
        return "unreadable"
