"""vLLM's own generic Triton attention, loaded from its two files without vLLM around them.

Where vLLM finds no GPU driver it replaces Triton by a placeholder, so its kernel can neither be
interpreted nor compiled for another machine through vLLM itself. Here the two files are loaded by
path, with the few names they import stood in for; the kernel and the launcher that picks its
constants are vLLM's, unchanged. It is the baseline of every comparison and the oracle of ``exact``.
"""

from __future__ import annotations

import enum
import functools
import importlib.util
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from hwtune_kernels.triton_call import Launch

SEGMENTS = 16
"""vLLM 0.32 v1/attention/backends/triton_attn.py NUM_PAR_SOFTMAX_SEGMENTS."""
_OPS = "v1/attention/ops"
_FIRST_NAMES = ("q", "k", "v", "out", "cu_seqlens_q", "max_seqlen_q", "seqused_k", "max_seqlen_k")
_KERNELS = ("kernel_unified_attention", "reduce_segments")


class GenericUnavailableError(RuntimeError):
    """vLLM's generic kernel is not installed here, or is not the one this loader knows."""


def launches(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    output: torch.Tensor,
    *,
    query_start: torch.Tensor,
    max_query_len: int,
    segments: int = SEGMENTS,
    tensor_descriptors: bool = False,
) -> tuple[Launch, ...]:
    """What vLLM's ``unified_attention`` would launch; arguments as those of ``page_decode``.

    Args:
        segments: parts of the KV axis in decode; vLLM uses 16 (64 on SM120).
        tensor_descriptors: vLLM's ``VLLM_TRITON_USE_TD=1`` variant.

    Raises:
        GenericUnavailableError: no vLLM, or one whose files this loader does not know.
    """
    module = _load()
    num_sequences, num_heads = seq_lens.shape[0], query.shape[1]
    shape = (query.shape[0], num_heads, segments)
    partial = torch.empty((*shape, query.shape[2]), dtype=torch.float32, device=query.device)
    maxima, sums = (torch.empty_like(partial[..., 0]) for _ in range(2))
    one = torch.ones(1, dtype=torch.float32, device=query.device)
    recorded: list[Launch] = []
    with _recording(module, recorded):
        module.unified_attention(
            q=query,
            k=key_pages,
            v=value_pages,
            out=output,
            cu_seqlens_q=query_start,
            max_seqlen_q=max_query_len,
            seqused_k=seq_lens,
            max_seqlen_k=block_table.shape[1] * key_pages.shape[1],
            softmax_scale=scale,
            causal=True,
            window_size=(-1, -1),
            block_table=block_table,
            softcap=0,
            q_descale=None,
            k_descale=one.expand(num_sequences, key_pages.shape[2]),
            v_descale=one.expand(num_sequences, key_pages.shape[2]),
            seq_threshold_3D=max(num_sequences, 1),
            num_par_softmax_segments=segments,
            softmax_segm_output=partial,
            softmax_segm_max=maxima,
            softmax_segm_expsum=sums,
            use_td=tensor_descriptors,
        )
    return tuple(recorded)


class _Recorder:
    """Stands where a kernel stood: keeps what it would have been launched with."""

    def __init__(self, kernel: Any, recorded: list[Launch]) -> None:
        self._kernel = kernel
        self._recorded = recorded

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def record(**constants: Any) -> None:
            names = ("num_warps", "num_stages")
            options = {name: constants.pop(name) for name in names if name in constants}
            self._recorded.append(
                Launch(
                    kernel=self._kernel,
                    grid=grid,
                    arguments=(),
                    constants=constants,
                    options=options,
                )
            )

        return record


@contextmanager
def _recording(module: Any, recorded: list[Launch]) -> Iterator[None]:
    kernels = {name: getattr(module, name) for name in _KERNELS}
    for name, kernel in kernels.items():
        setattr(module, name, _Recorder(kernel, recorded))
    try:
        yield
    finally:
        for name, kernel in kernels.items():
            setattr(module, name, kernel)


@functools.cache
def _load() -> types.ModuleType:
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.submodule_search_locations is None:
        message = "vLLM is not installed here, so there is no generic kernel to compare with"
        raise GenericUnavailableError(message)
    root = Path(next(iter(spec.submodule_search_locations))) / _OPS
    try:
        with _stand_ins():
            _module("vllm.v1.attention.ops.triton_attention_helpers", root)
            module = _module("vllm.v1.attention.ops.triton_unified_attention", root)
        code = module.unified_attention.__code__
        known = code.co_varnames[: len(_FIRST_NAMES)] == _FIRST_NAMES
        known = known and all(hasattr(module, name) for name in _KERNELS)
    except (OSError, ImportError, AttributeError) as error:
        message = f"vLLM's generic kernel cannot be loaded from {root}: {error}"
        raise GenericUnavailableError(message) from error
    if not known:
        message = f"{root}/triton_unified_attention.py is not the one of vLLM 0.28 to 0.32"
        raise GenericUnavailableError(message)
    return module


def _module(name: str, root: Path) -> types.ModuleType:
    path = root / f"{name.rpartition('.')[2]}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        message = f"no loader for {path}"
        raise ImportError(message)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class _KVQuantMode(enum.IntEnum):
    """vLLM 0.32 v1/kv_cache_interface.py KVQuantMode."""

    NONE = 0
    FP8_PER_TENSOR = 1
    INT8_PER_TOKEN_HEAD = 2
    FP8_PER_TOKEN_HEAD = 3
    INT4_PER_TOKEN_HEAD = 4


@contextmanager
def _stand_ins() -> Iterator[None]:
    """What the two files import of vLLM; vLLM itself, where loaded, is put back afterwards."""
    platform = types.SimpleNamespace(
        fp8_dtype=lambda: torch.float8_e4m3fn,
        is_device_capability_family=lambda family: False,
    )
    logger = types.SimpleNamespace(warning=print, info=print, debug=print)
    contents: dict[str, dict[str, Any]] = {
        "vllm": {"__path__": []},
        "vllm.envs": {"VLLM_BATCH_INVARIANT": False},
        "vllm.logger": {"init_logger": lambda name: logger},
        "vllm.platforms": {"current_platform": platform},
        "vllm.triton_utils": {"tl": tl, "triton": triton},
        "vllm.v1": {"__path__": []},
        "vllm.v1.kv_cache_interface": {"KVQuantMode": _KVQuantMode},
        "vllm.v1.attention": {"__path__": []},
        "vllm.v1.attention.ops": {"__path__": []},
    }
    saved = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_vllm(name)}
    try:
        for name, attributes in contents.items():
            module = types.ModuleType(name)
            vars(module).update(attributes)
            sys.modules[name] = module
        yield
    finally:
        for name in [name for name in sys.modules if _is_vllm(name)]:
            del sys.modules[name]
        sys.modules.update(saved)


def _is_vllm(name: str) -> bool:
    return name == "vllm" or name.startswith("vllm.")
