"""Compares a derived page with what the installed vLLM's own code resolves."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hwtune.adapters.packages import require_package
from hwtune.adapters.vllm import check_child
from hwtune.domain.deployment import Deployment
from hwtune.domain.errors import ExternalFailureError
from hwtune.domain.page import PageDerivation

_TIMEOUT_S = 600
_ARGUMENTS = (
    "tensor_parallel_size",
    "dtype",
    "kv_cache_dtype",
    "mamba_cache_dtype",
    "mamba_ssm_cache_dtype",
    "enable_prefix_caching",
    "mamba_cache_mode",
    "mamba_block_size",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
)
"""Fields of a deployment that vLLM's EngineArgs takes under the same name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One page to check."""

    page: PageDerivation
    backend_multiple: int
    """Tokens that the attention backend declares multiples of."""
    block_size: int | None
    """--block-size of the check, when there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One field, derived and resolved."""

    field: str
    derived: str
    resolved: str

    @property
    def agrees(self) -> bool:
        """Whether both say the same."""
        return self.derived == self.resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What the installed vLLM says of each variant."""

    version: str
    checks: tuple[Check, ...]


def check_with_vllm(
    model: Path, variants: Sequence[Variant], python: str | None = None
) -> CheckResult:
    """Runs vLLM's configuration and page code in a process of its own; needs no weights or device.

    Args:
        python: the interpreter that has vLLM; this one when None.

    Raises:
        MissingDependencyError: that Python has no vLLM.
        ExternalFailureError: vLLM did not answer.
    """
    if python is None:
        advice = "name a Python that has it with --check-python"
        require_package("vllm", "--check-with-vllm", advice)
    answer = _ask(python or sys.executable, _request(model, variants))
    checks: list[Check] = []
    for variant, resolved in zip(variants, answer["answers"], strict=True):
        checks += _compare(variant, resolved)
    return CheckResult(version=answer["version"], checks=tuple(checks))


def _request(model: Path, variants: Sequence[Variant]) -> dict[str, Any]:
    deployment = variants[0].page.deployment
    folder = model if model.is_dir() else model.parent
    return {
        "platform": deployment.platform,
        "arguments": {"model": str(folder)} | _arguments(deployment),
        "variants": [
            {"multiple": variant.backend_multiple, "block_size": variant.block_size}
            for variant in variants
        ],
    }


def _arguments(deployment: Deployment) -> dict[str, Any]:
    named = {name: getattr(deployment, name) for name in _ARGUMENTS}
    arguments = {name: value for name, value in named.items() if value is not None}
    if deployment.num_speculative_tokens:
        arguments["speculative_config"] = {
            "method": "ngram",
            "num_speculative_tokens": deployment.num_speculative_tokens,
        }
    return arguments


def _ask(python: str, request: dict[str, Any]) -> dict[str, Any]:
    command = [python, check_child.__file__]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(request),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        message = f"{python}: cannot be started: {error.strerror}"
        raise ExternalFailureError(message) from None
    except subprocess.TimeoutExpired:
        message = f"{python}: vLLM did not answer within {_TIMEOUT_S} s"
        raise ExternalFailureError(message) from None
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(check_child.MARK):
            answer: dict[str, Any] = json.loads(line.removeprefix(check_child.MARK))
            return answer
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    message = f"{python}: vLLM did not answer (exit status {done.returncode}): {last[:300]}"
    raise ExternalFailureError(message)


def _compare(variant: Variant, resolved: dict[str, Any]) -> list[Check]:
    page = variant.page
    derived = {
        "block_size": page.block_size_tokens,
        "mamba_block_size": page.mamba_block_size,
        "mamba_page_size_padded": page.mamba_page_padded_bytes,
        "mamba_cache_mode": page.mamba_cache_mode,
        "enable_prefix_caching": page.enable_prefix_caching,
    }
    if "error" in resolved:
        refusal = f"{resolved['error']['class']}: {resolved['error']['message']}"
        return [Check(field="block_size", derived=str(page.block_size_tokens), resolved=refusal)]
    label = f"at {variant.backend_multiple}"
    return [
        Check(field=f"{name} {label}", derived=str(value), resolved=str(resolved[name]))
        for name, value in derived.items()
    ]
