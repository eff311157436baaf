"""Which kernels are timed against which baselines on the device that is here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from hwtune_kernels import registry

from hwtune.adapters.packages import require_package
from hwtune.domain.errors import ExternalFailureError, InputError, MissingDependencyError
from hwtune.domain.kernel_timing import Caches, CallCase, Sample

_PURPOSE = "timing kernels"
Load = Callable[[], Callable[..., Any]]


def device_here() -> tuple[str, str]:
    """``("cuda", "NVIDIA H200")`` (also for AMD, as torch has it), or ``("cpu", …)``.

    Raises:
        MissingDependencyError: no torch.
    """
    require_package("torch", _PURPOSE)
    try:
        import torch
    except (ImportError, OSError) as error:
        message = f"{_PURPOSE} needs torch, which cannot be imported here: {error}"
        raise MissingDependencyError(message) from None
    if torch.cuda.is_available():
        return "cuda", str(torch.cuda.get_device_name(0))
    return "cpu", f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"


def samples(
    cases: Sequence[CallCase],
    kernels: Sequence[str],
    tunings: Mapping[str, dict[str, int]],
    pairs: int,
    providers: Mapping[str, str] | None = None,
) -> Iterator[Sample]:
    """Every kernel on every case it is made for, one sample per baseline and cache state.

    Args:
        cases: shapes to run.
        kernels: implementations; empty takes those of the device that is here. One of the user's
            (``module:name``) is run on every case, as a CPU's where no GPU is here.
        tunings: implementation -> launch constants.
        pairs: how often each pair is timed; 0 only compares outputs.
        providers: implementation -> function of the library that it calls.

    Raises:
        InputError: a kernel that cannot run here, or a shape it refuses.
        MissingDependencyError: torch, Triton or vLLM is missing.
        ExternalFailureError: the device or vLLM refused.
    """
    device, _ = device_here()
    for name in kernels:
        _require_known(name)
    for name in kernels or _default_kernels(device):
        load = partial(_load, name, tunings.get(name) or {}, (providers or {}).get(name, ""))
        for case in cases:
            if ":" in name or name.startswith(case.operation):
                try:
                    yield from _one(case, name, load, pairs, device)
                except (ValueError, TypeError) as error:
                    message = f"{name} does not take {_shown(case)}: {error}"
                    raise InputError(message) from None
                except RuntimeError as error:
                    message = f"{name} on {_shown(case)}: {error}"
                    raise ExternalFailureError(message) from None
                except (LookupError, AttributeError, ImportError, AssertionError) as error:
                    if ":" not in name:
                        raise
                    message = f"{name} on {_shown(case)}: {type(error).__name__}: {error}"
                    raise ExternalFailureError(message) from None


def _load(name: str, tuning: Mapping[str, int], provider: str) -> Callable[..., Any]:
    """The implementation; loading one of the user's may raise anything."""
    try:
        return registry.load(name, tuning, provider)
    except Exception as error:  # noqa: BLE001 - the user's code
        message = f"{name} cannot be loaded: {type(error).__name__}: {error}"
        raise InputError(message) from None


def _default_kernels(device: str) -> tuple[str, ...]:
    kind = "cpu" if device == "cpu" else "triton"
    return (f"prefill.{kind}", f"decode.{kind}")


def _require_known(name: str) -> None:
    if not registry.is_available(name):
        ours = ", ".join([*registry.IMPLEMENTATIONS, *registry.PROVIDED])
        message = f"--kernel {name}: is none of {ours}, and no module:name that is found here"
        raise InputError(message)


def _one(case: CallCase, name: str, load: Load, pairs: int, device: str) -> Iterator[Sample]:
    require_package("vllm", _PURPOSE)
    if name.endswith(".cpu") or (":" in name and device == "cpu"):
        yield _on_cpu(case, name, load, pairs)
    else:
        require_package("triton", _PURPOSE)
        yield from _on_gpu(case, name, load, pairs, device)


def _on_cpu(case: CallCase, name: str, load: Load, pairs: int) -> Sample:
    from hwtune.adapters.kernel_bench.cpu import runners, wall_clock
    from hwtune.adapters.kernel_bench.timing import make_inputs, measure

    if case.batch != 1:
        message = f"--batch {case.batch}: {name} takes one sequence"
        raise InputError(message)
    inputs = make_inputs(case, "cpu")
    kernel, baseline = runners(case, inputs, name, load())
    return measure(
        case,
        inputs,
        kernel,
        baseline,
        clock=wall_clock,
        clock_name="wall time",
        caches="as they are",
        pairs=pairs,
    )


def _on_gpu(case: CallCase, name: str, load: Load, pairs: int, device: str) -> Iterator[Sample]:
    from hwtune.adapters.kernel_bench import gpu
    from hwtune.adapters.kernel_bench.timing import Clock, make_inputs, measure

    if device == "cpu" and not gpu.is_interpreted():
        message = f"{name} needs a GPU; TRITON_INTERPRET=1 with --pairs 0 compares outputs on a CPU"
        raise InputError(message)
    if gpu.is_interpreted() and pairs:
        message = "Triton's interpreter takes no times: give --pairs 0"
        raise InputError(message)
    inputs = make_inputs(case, device)
    kernel = gpu.ours(case, inputs, name, load())
    clocks: dict[Caches, Clock] = {"as they are": gpu.warm_clock}
    if pairs:
        clocks = {"warm": gpu.warm_clock, "cold": gpu.cold_clock()}
    for baseline in gpu.baselines(case, inputs):
        sides = [kernel, baseline]
        if pairs:
            sides = [dataclasses.replace(side, run=gpu.captured(side)) for side in sides]
        for caches, clock in clocks.items():
            yield measure(
                case,
                inputs,
                sides[0],
                sides[1],
                clock=clock,
                clock_name="graph replay" if pairs else "none",
                caches=caches,
                pairs=pairs,
            )


def _shown(case: CallCase) -> str:
    return (
        f"{case.num_heads}/{case.num_kv_heads}/{case.head_size}, page {case.page},"
        f" batch {case.batch}, query {case.query}, context {case.context}"
    )
