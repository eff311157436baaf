"""Runs vLLM's own page code for a config and prints what it resolved; nothing is loaded.

Started as a file by ``hwtune.adapters.vllm.check`` under the Python that has vLLM, so it imports
nothing of hwtune. Reads one JSON request from standard input and prints one marked JSON line.
"""

from __future__ import annotations

import json
import sys
from typing import Any

MARK = "HWTUNE-PAGE-CHECK "


def _backend(multiple: int) -> Any:
    """A backend that declares multiples of ``multiple``, with the platform's own packing."""
    from vllm.v1.attention.backend import MultipleOf
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    base = AttentionBackendEnum.CPU_ATTN.get_class()

    sizes = staticmethod(lambda: [MultipleOf(multiple)])
    return type("Declared", (base,), {"get_supported_kernel_block_sizes": sizes})


def _config(request: dict[str, Any], block_size: int | None) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    arguments = dict(request["arguments"])
    if block_size is not None:
        arguments["block_size"] = block_size
    return EngineArgs(
        load_format="dummy", skip_tokenizer_init=True, **arguments
    ).create_engine_config()


def _resolve(request: dict[str, Any], variant: dict[str, Any]) -> dict[str, Any]:
    from vllm.platforms import current_platform
    from vllm.platforms.interface import Platform

    config = _config(request, variant["block_size"])
    cache = config.cache_config
    platform = type(current_platform) if request["platform"] == "cpu" else Platform
    if request["platform"] != "cpu" and not cache.user_specified_block_size:
        cache.block_size = 16
    declared = _backend(variant["multiple"])
    if hasattr(platform, "_find_non_ssm_backends"):  # 0.31 and newer: all of them
        platform._find_non_ssm_backends = classmethod(lambda *_: [declared])
    else:  # 0.20 to 0.30: the first; older releases ask no backend
        platform._find_non_ssm_backend = classmethod(lambda *_: declared)
    platform.update_block_size_for_backend(config)
    return {
        "block_size": cache.block_size,
        "mamba_block_size": cache.mamba_block_size,
        "mamba_page_size_padded": cache.mamba_page_size_padded,
        "mamba_cache_mode": cache.mamba_cache_mode,
        "enable_prefix_caching": cache.enable_prefix_caching,
    }


def main() -> None:
    """Resolves every variant of the request; an exception becomes its class and first line."""
    # A script's folder comes first in sys.path, and hwtune.adapters has a package called vllm.
    del sys.path[0]
    request = json.load(sys.stdin)
    answers: list[dict[str, Any]] = []
    for variant in request["variants"]:
        try:
            answers.append(_resolve(request, variant))
        except Exception as error:
            lines = str(error).splitlines() or [""]
            text = " ".join(line.strip() for line in lines[:3])
            answers.append({"error": {"class": type(error).__name__, "message": text}})
    import vllm

    print(MARK + json.dumps({"version": vllm.__version__, "answers": answers}), flush=True)  # noqa: T201


if __name__ == "__main__":
    # A script's own folder comes first in the search path; ours has names that others import.
    sys.path.pop(0)
    main()
