"""vLLM's own generic Triton attention, loaded from its files without vLLM around them.

Where vLLM finds no GPU driver it replaces Triton by a placeholder, so its kernel can neither be
interpreted nor compiled for another machine through vLLM itself. Here the files are loaded by
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


def rocm_launches(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    output: torch.Tensor,
    *,
    query_start: torch.Tensor,
) -> tuple[Launch, ...]:
    """What vLLM's ROCM_ATTN, its default on AMD, launches for decode on a page like 784 or 832.

    K and V are only looked at for their shape: ROCM_ATTN keeps them in layouts of its own
    (``[num_blocks, kv_heads, head_size / x, page, x]`` and ``[num_blocks, kv_heads, head_size,
    page]``), which are made up here on the same device.

    Raises:
        GenericUnavailableError: no vLLM, or one whose file this loader does not know.
    """
    num_blocks, page, num_kv_heads, head_size = key_pages.shape
    pack = 16 // key_pages.element_size()
    keys = key_pages.new_empty(num_blocks, num_kv_heads, head_size // pack, page, pack)
    one = torch.ones(1, dtype=torch.float32, device=query.device)
    module = _load_rocm()
    recorded: list[Launch] = []
    with _stand_ins(), _recording(module, recorded, ("kernel_paged_attention_2d",)):
        module.chunked_prefill_paged_decode(
            query=query,
            key=query[:, :num_kv_heads],
            value=query[:, :num_kv_heads],
            output=output,
            kv_cache_dtype="auto",
            key_cache=keys,
            value_cache=keys.new_empty(num_blocks, num_kv_heads, head_size, page),
            block_table=block_table,
            query_start_loc=query_start,
            seq_lens=seq_lens,
            max_seq_len=block_table.shape[1] * page,
            max_query_len=1,
            k_scale=one,
            v_scale=one,
            sm_scale=scale,
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
def _recording(
    module: Any, recorded: list[Launch], names: tuple[str, ...] = _KERNELS
) -> Iterator[None]:
    kernels = {name: getattr(module, name) for name in names}
    for name, kernel in kernels.items():
        setattr(module, name, _Recorder(kernel, recorded))
    try:
        yield
    finally:
        for name, kernel in kernels.items():
            setattr(module, name, kernel)


@functools.cache
def _load() -> Any:
    module = _load_from("triton_attention_helpers", "triton_unified_attention")
    names = getattr(getattr(module, "unified_attention", None), "__code__", None)
    known = names is not None and names.co_varnames[: len(_FIRST_NAMES)] == _FIRST_NAMES
    if not known or not all(hasattr(module, name) for name in _KERNELS):
        message = f"{module.__file__} is not the one of vLLM 0.28 to 0.32"
        raise GenericUnavailableError(message)
    return module


@functools.cache
def _load_rocm() -> Any:
    return _load_from("chunked_prefill_paged_decode")


def _load_from(*files: str) -> Any:
    """The last of the files, loaded after the others."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.submodule_search_locations is None:
        message = "vLLM is not installed here, so there is no generic kernel to compare with"
        raise GenericUnavailableError(message)
    root = Path(next(iter(spec.submodule_search_locations))) / _OPS
    try:
        with _stand_ins():
            modules = [_module(f"vllm.v1.attention.ops.{file}", root) for file in files]
    except (OSError, ImportError, AttributeError) as error:
        message = f"vLLM's generic kernel cannot be loaded from {root}: {error}"
        raise GenericUnavailableError(message) from error
    return modules[-1]


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
    """What the files import of vLLM; vLLM itself, where loaded, is put back afterwards."""
    platform = types.SimpleNamespace(
        fp8_dtype=lambda: torch.float8_e4m3fn,
        is_device_capability_family=lambda family: False,
    )
    logger = types.SimpleNamespace(warning_once=lambda *text: None)
    contents: dict[str, dict[str, Any]] = {
        "vllm": {"__path__": [], "_custom_ops": None},
        "vllm.envs": {"VLLM_BATCH_INVARIANT": False},
        "vllm.logger": {"init_logger": lambda name: logger},
        "vllm.platforms": {"__path__": [], "current_platform": platform},
        "vllm.platforms.rocm": {"use_rocm_custom_paged_attention": lambda *call: False},
        "vllm.triton_utils": {"tl": tl, "triton": triton},
        "vllm.v1": {"__path__": []},
        "vllm.v1.kv_cache_interface": {"KVQuantMode": _KVQuantMode},
        "vllm.v1.attention": {"__path__": []},
        "vllm.v1.attention.ops": {"__path__": []},
        "vllm.v1.attention.ops.prefix_prefill": {"context_attention_fwd": None},
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
