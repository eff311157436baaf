"""One attention backend has many names; these compare them."""

from __future__ import annotations

_SAME = {
    "FLASHATTENTION": "FLASHATTN",
    "TRITONATTENTION": "TRITONATTN",
    "FLEXATTENTION": "FLEXATTENTION",
    "TREEATTENTION": "TREEATTN",
    "ROCMATTENTION": "ROCMATTN",
    "TRITON/ROCMATTENTION": "ROCMATTN",
    "AITERUNIFIEDATTENTION": "ROCMAITERUNIFIEDATTN",
    "AITERFLASHATTENTION": "ROCMAITERFA",
    "FLASHATTNVLLMV1": "FLASHATTN",
    "TRITONATTNVLLMV1": "TRITONATTN",
    "FLASHINFERVLLMV1": "FLASHINFER",
    "FLEXATTN": "FLEXATTENTION",
    "TRITON": "TRITONATTN",
    "ROCM/AITERATTENTION": "ROCMATTN",
    "ROCMFLASHATTENTION": "ROCMATTN",
    "AITERMLA": "ROCMAITERMLA",
    "AITERTRITONMLA": "ROCMAITERTRITONMLA",
    "FLASHATTENTIONMLA": "FLASHATTNMLA",
    "SPARSEMLA": "FLASHMLASPARSE",
    "PALLASV1": "PALLAS",
}
"""Wordings of ``Using ... backend on V1 engine`` -> registry name, without separators.
Source: vllm/platforms/cuda.py and rocm.py, 0.8 to 0.20."""


def normal_backend(name: str) -> str:
    """The name in capitals without separators, old wordings replaced by the registry's."""
    plain = "".join(c for c in name.upper() if c not in " _-")
    return _SAME.get(plain, plain)


def same_backend(one: str, other: str) -> bool:
    """Whether both names mean the same backend."""
    return normal_backend(one) == normal_backend(other)
