"""Gathers what a launch plan needs from this machine, then lets the domain decide."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from hwtune_kernels import registry

from hwtune.adapters.hub import resolve_model
from hwtune.adapters.vllm.discovery import find_vllm
from hwtune.adapters.vllm.surroundings import cpu_features
from hwtune.domain.errors import UsageError
from hwtune.domain.launch import Arm, LaunchPlan
from hwtune.domain.planning import ServerRequest, flag_value, plan_launch
from hwtune.io.model_config import load_model
from hwtune.io.profiles import load_profile

DEFAULT_PORT = 8000
LOOPBACK = "127.0.0.1"


def plan_server(
    model: str,
    profile: str,
    arm: Arm,
    flags: Sequence[str],
    *,
    port: int | None = None,
    checked_rate: float = 0.0,
    count_attn_state: bool = False,
) -> LaunchPlan:
    """The plan for one server on this machine.

    Args:
        model: directory or Hugging Face id, handed to vLLM as it is.
        profile: profile name or TOML file.
        arm: candidate carries the profile's constraint; baseline only observes.
        flags: vLLM's flags, passed through untouched.
        port: where to listen when ``flags`` do not say.
        checked_rate: share of the hits that vLLM's own path computes too, from 0 to 1.
        count_attn_state: whether the plugin counts vllm-ascend's attn_state and calls.

    Raises:
        HwtuneError: anything about the model, profile, flags or installation that does not fit.
    """
    if model.startswith("-"):
        message = f"{model}: expected a model first; put vLLM's flags after it"
        raise UsageError(message)
    hardware = load_profile(profile)
    shape = load_model(str(resolve_model(model)))
    request = ServerRequest(
        model=_absolute(model),
        shape=shape,
        profile=hardware,
        profile_reference=profile,
        arm=arm,
        flags=tuple(flags),
        host=flag_value(flags, "--host") or LOOPBACK,
        port=_port(flags, port),
        environ=os.environ,
        checked_rate=checked_rate,
        count_attn_state=count_attn_state,
        cpu_features=cpu_features(),
    )
    return plan_launch(
        request,
        find_vllm(),
        run_id=new_run_id(hardware.name, arm),
        nonce=secrets.token_hex(6),
        available=registry.is_available,
    )


def new_run_id(*parts: str) -> str:
    """A name for a run directory that sorts by time and does not repeat."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return "-".join([stamp, *parts, secrets.token_hex(2)])


def free_port() -> int:
    """A TCP port that nothing on this machine listens on at the moment."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
    return port


def _absolute(model: str) -> str:
    """A local directory as an absolute path, so that the plan means the same from anywhere."""
    return str(Path(model).resolve()) if Path(model).exists() else model


def _port(flags: Sequence[str], port: int | None) -> int:
    given = flag_value(flags, "--port")
    if given is None:
        return port or DEFAULT_PORT
    if not given.isdigit() or not 0 < int(given) < 65536:
        message = f"--port {given}: expected a number from 1 to 65535"
        raise UsageError(message)
    return int(given)
