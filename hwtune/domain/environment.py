"""What a server ran in: package versions, variables that can change its speed, the machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_PREFIXES = (
    "VLLM_", "CUDA_", "NVIDIA_", "CUBLAS", "CUDNN_", "HIP_", "ROCR_", "ROCM_", "HSA_", "AMD_",
    "GPU_", "MIOPEN_", "AITER_", "NCCL_", "RCCL_", "HCCL_", "ASCEND_", "ATB_", "NPU_", "TORCH",
    "PYTORCH_", "TRITON_", "INDUCTOR_", "FLASHINFER_", "FLASH_", "FLA_", "XFORMERS_", "TILELANG_",
    "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "NUMEXPR_", "MALLOC_", "TCMALLOC_", "UCX_",
    "GLOO_", "RAY_", "LMCACHE_", "DTK_", "LD_", "PYTHON",
)  # fmt: skip
"""vLLM's own, the accelerators' runtimes and libraries, threads, allocators, the loader."""
_WORDS = re.compile(r"ATTN|ATTENTION|KERNEL|PREFILL|DECODE|PAGED|BLOCK_SIZE|GRAPH|FUSED|BACKEND")
"""Switches of patched builds have any prefix (XDB_FLASH_ATTN_PREFILL)."""
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
_OF_THE_RUN = re.compile(r"HWTUNE_\w+|VLLM_PORT|VLLM_HOST_IP|VLLM_RPC_BASE_PATH|VLLM_CACHE_ROOT")
"""Names and places that belong to one run and change nothing of its speed."""
_HIDDEN = "(hidden)"
_MAX_CHARS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEnvironment:
    """As the launcher recorded it when it started the server."""

    packages: Mapping[str, str] = field(default_factory=dict)
    """Distribution and version, every one that the server's Python sees."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables that can change how vLLM or a library runs; values of secrets are hidden."""
    machine: Mapping[str, str] = field(default_factory=dict)
    """python, system, cpu, cpus, devices."""


def relevant_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Those that can change how a server runs, in alphabetical order, without secrets."""
    return {
        name: _HIDDEN if _SECRET.search(name) else variables[name][:_MAX_CHARS]
        for name in sorted(variables)
        if (name.startswith(_PREFIXES) or _WORDS.search(name)) and not _OF_THE_RUN.fullmatch(name)
    }


def environment_conditions(environment: ServerEnvironment) -> dict[str, str]:
    """One name per condition: ``package torch``, ``env VLLM_X``, ``machine cpu``."""
    return {
        **{f"package {name}": value for name, value in environment.packages.items()},
        **{f"env {name}": value for name, value in environment.variables.items()},
        **{f"machine {name}": value for name, value in environment.machine.items()},
    }
