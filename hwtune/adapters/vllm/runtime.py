"""What the plugin holds inside one vLLM process: the plan, the counters, the marker lines."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hwtune_kernels import registry
from vllm.logger import init_logger

from hwtune.adapters.vllm.checked import HitCheck
from hwtune.adapters.vllm.dispatch import LayerDispatcher, bind_layer
from hwtune.domain.checking import tolerance_for
from hwtune.domain.kernel import KernelSpec, LayerTraits
from hwtune.domain.launch import PLAN_ENVIRONMENT_VARIABLE, LaunchPlan
from hwtune.io.check_slots import CheckFile
from hwtune.io.counters import CounterFile
from hwtune.io.plans import read_plan

# Below "vllm", because vLLM configures handlers for that tree only.
logger = init_logger("vllm.hwtune")


@functools.cache
def current_plan() -> LaunchPlan:
    """The plan of this run.

    Raises:
        InputError: the plan file is missing, damaged or of another version.
        KeyError: there is no plan.
    """
    return read_plan(Path(os.environ[PLAN_ENVIRONMENT_VARIABLE]))


@functools.cache
def counters() -> CounterFile:
    """This process's counters, made when the first layer is bound."""
    plan = current_plan()
    return CounterFile(_run_dir(), plan.nonce, _say_lost)


@functools.cache
def checks() -> CheckFile:
    """Where this process records what checked mode finds."""
    return CheckFile(_run_dir(), current_plan().nonce, _say_lost)


def _run_dir() -> Path:
    return Path(os.environ[PLAN_ENVIRONMENT_VARIABLE]).parent


def _say_lost(reason: str) -> None:
    mark(f"evidence lost reason={reason}")


def mark(text: str) -> None:
    """Prints one marker line. The nonce ties it to this run."""
    logger.info("hwtune[%s] %s", current_plan().nonce, text)


def bind(name: str, layer: LayerTraits) -> LayerDispatcher:
    """The dispatcher of an attention layer, announced with one marker line."""
    plan = current_plan()
    dispatcher = bind_layer(plan.kernels, layer, _loader(plan), counters(), count_fault)
    if plan.checked_rate:
        _check_hits(dispatcher, name, layer, plan.checked_rate)
    takes = ",".join(k.name for k in dispatcher.kernels if not k.refusal) or "-"
    refuses = ";".join(f"{k.name}:{k.refusal}" for k in dispatcher.kernels if k.refusal) or "-"
    mark(
        f"layer bound name={name} block_size={layer.block_size} "
        f"heads={layer.num_heads}/{layer.num_kv_heads} head_size={layer.head_size} "
        f"dtype={layer.dtype} kv_cache_dtype={layer.kv_cache_dtype} takes={takes} "
        f"refuses={refuses}"
    )
    return dispatcher


def _check_hits(dispatcher: LayerDispatcher, name: str, layer: LayerTraits, rate: float) -> None:
    tolerance = tolerance_for(layer.dtype, layer.kv_cache_dtype)
    for kernel in dispatcher.kernels:
        if kernel.run is not None and kernel.refusal is None:
            row = checks().row(kernel.name, name, tolerance)
            kernel.check = HitCheck(name, rate, tolerance, row)


def count_fault(error: Exception, kernel: str = "-") -> None:
    """Counts and prints that our own code raised. Never raises: it stands in vLLM's path."""
    with contextlib.suppress(Exception):
        file = counters()
        file.view[file.slot(kernel, "fault", type(error).__name__)] += 1
        text = " ".join(str(error).split())[:300]
        mark(f"fault kernel={kernel} error={type(error).__name__}: {text}")


def _loader(plan: LaunchPlan) -> Callable[[KernelSpec], Callable[..., Any] | None]:
    if plan.arm == "baseline":
        return lambda spec: None
    return lambda spec: registry.load(spec.implementation, spec.tuning, spec.provider)
