"""A launch plan as text for people."""

from __future__ import annotations

import shlex

from hwtune.domain.launch import LaunchPlan


def plan_to_text(plan: LaunchPlan) -> str:
    """What will run, what hwtune adds and why, and what must be true afterwards."""
    lines = [
        f"plan {plan.run_id} ({plan.arm})",
        f"  model    {plan.model}",
        f"  profile  {plan.profile}, vLLM {plan.vllm_version}",
        f"  command  {shlex.join(plan.argv)}",
        *(f"  adds     {flag.name} {flag.value}: {flag.reason}" for flag in plan.added),
        *(f"  sets     {name}={value}" for name, value in sorted(plan.environment.items())),
        *(f"  expects  {name} = {value}" for name, value in _expectations(plan)),
        *(f"  note     {note}" for note in plan.notes),
    ]
    return "\n".join(lines)


def _expectations(plan: LaunchPlan) -> list[tuple[str, object]]:
    expect = plan.expect
    facts: list[tuple[str, object]] = [
        ("block size", None if expect.block_size is None else f"{expect.block_size} tokens"),
        ("padding", None if expect.padding_pct is None else f"{expect.padding_pct:.2f} %"),
        ("prefix caching", _on_off(expect.enable_prefix_caching)),
        ("mamba cache mode", expect.mamba_cache_mode),
        ("attention backend", expect.backend),
        ("kernel hits", ", ".join(expect.kernels) or None),
    ]
    return [(name, value) for name, value in facts if value is not None]


def _on_off(value: bool | None) -> str | None:
    return None if value is None else ("on" if value else "off")
