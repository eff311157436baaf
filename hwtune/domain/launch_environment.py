"""The environment of a server's processes: what reaches each of them, wherever it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hwtune.domain.launch import PLAN_ENVIRONMENT_VARIABLE
from hwtune.domain.page_rules_versions import Feature, parse_version

RAY_VARIABLES = "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"
"""Names, separated by commas, that vLLM copies to its Ray workers beside those it knows."""
RAY_COPIES_MORE = Feature(since=(0, 17, 0), source="ray/ray_env.py get_env_vars_to_copy")

RAY_FOLDS_LINES = "RAY_DEDUP_LOGS"
"""Unless 0, Ray's driver prints what several workers say once only, and a rank goes unseen."""

PLUGINS_VARIABLE = "VLLM_PLUGINS"
"""The plugins, of every group, that vLLM may load; unset means all (plugins/__init__.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchEnvironment:
    """Variables on top of the caller's, and what to know about them."""

    variables: dict[str, str]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """How a deployment's processes come to be."""

    vllm_version: str
    names_ray: bool
    """Whether a flag asks for Ray."""
    count: int
    """Ranks of all kinds together; above 1 vLLM may choose Ray by itself."""


def launch_environment(
    environ: Mapping[str, str], workers: Workers, *, plugin_acts: bool
) -> LaunchEnvironment:
    """What to set so that the plan reaches every process, and only there.

    Args:
        environ: the caller's environment; lists in it are extended, never replaced.
        workers: how the processes come to be.
        plugin_acts: whether the plan has anything for the plugin to do.
    """
    variables = {"PYTHONUNBUFFERED": "1", **_plugins(environ)}
    notes: tuple[str, ...] = ()
    if not plugin_acts:
        variables[PLAN_ENVIRONMENT_VARIABLE] = ""
    elif workers.names_ray or workers.count > 1:
        ray, notes = _ray(environ, workers)
        variables |= ray
        if workers.names_ray and RAY_FOLDS_LINES not in environ:
            variables[RAY_FOLDS_LINES] = "0"
    return LaunchEnvironment(variables=variables, notes=notes)


def _plugins(environ: Mapping[str, str]) -> dict[str, str]:
    allowed = environ.get(PLUGINS_VARIABLE)
    if allowed is None or "hwtune" in allowed.split(","):
        return {}
    return {PLUGINS_VARIABLE: ",".join(filter(None, [allowed, "hwtune"]))}


def _ray(environ: Mapping[str, str], workers: Workers) -> tuple[dict[str, str], tuple[str, ...]]:
    """Workers of a Ray cluster inherit the cluster's environment, not this one."""
    if not RAY_COPIES_MORE.holds(parse_version(workers.vllm_version)):
        note = (
            f"vLLM {workers.vllm_version} does not copy {PLAN_ENVIRONMENT_VARIABLE} to Ray workers; "
            "start Ray from the server, not before, or the workers run unpatched"
        )
        return {}, (note,) if workers.names_ray else ()
    names = [name for name in environ.get(RAY_VARIABLES, "").split(",") if name.strip()]
    if PLAN_ENVIRONMENT_VARIABLE not in names:
        names.append(PLAN_ENVIRONMENT_VARIABLE)
    note = "Ray workers on other nodes must see the run directory under the same path"
    return {RAY_VARIABLES: ",".join(names)}, (note,) if workers.names_ray else ()
