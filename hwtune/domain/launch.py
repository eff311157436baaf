"""What a server is to be: the command, the environment, and what must be true afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hwtune.domain.kernel import KernelSpec

Arm = Literal["baseline", "candidate"]

PLAN_SCHEMA_VERSION = 1
PLAN_ENVIRONMENT_VARIABLE = "HWTUNE_PLAN"
"""The plugin does nothing at all unless this names a plan file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmInstall:
    """The vLLM that will be started."""

    version: str
    ascend_version: str | None = None
    """Version of vllm-ascend beside it, if there is one."""
    command: tuple[str, ...]
    """What starts its OpenAI server, before any flag."""
    model_as_flag: bool
    """Whether the model is given as ``--model``; otherwise as the first argument."""
    location: str
    plugins: tuple[str, ...] = ()
    """Names of the plugins that it loads by itself, platform and endpoint plugins left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What the running server must show. None: nothing is expected of that fact."""

    block_size: int | None
    """Attention page in tokens that vLLM must resolve."""
    padding_pct: float | None
    """As vLLM prints it: relative to the recurrent state."""
    enable_prefix_caching: bool | None
    mamba_cache_mode: str | None
    backend: str | None
    """Name of the attention backend that must be in use."""
    kernels: tuple[str, ...]
    """Kernels that must be hit at least once after the first matching request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedFlag:
    """A vLLM flag or environment variable that hwtune adds, and why."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """One server, decided before it starts. The plugin in every vLLM process reads the same plan."""

    schema_version: int = PLAN_SCHEMA_VERSION
    run_id: str
    nonce: str
    """Random text in every marker of this run, so that quoted marker text is never evidence."""
    arm: Arm
    model: str
    served_model_name: str
    profile: str
    device: str
    vllm_version: str
    backend_to_extend: str
    alignment_tokens: int | None
    """Kernel block size that the plugin declares; None (baseline) leaves vLLM's own."""
    kernels: tuple[KernelSpec, ...]
    """Kernels the plugin dispatches to; observed only, never run, in the baseline arm."""
    checked_rate: float = 0.0
    """Share of the hits, from 0 to 1, that vLLM's own path computes too, to compare (checked
    mode)."""
    count_attn_state: bool = False
    """Whether the plugin counts vllm-ascend's attn_state and attention calls."""
    argv: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    """Variables set on top of the caller's environment."""
    added: tuple[AddedFlag, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    expect: Expectation
    notes: tuple[str, ...] = ()
