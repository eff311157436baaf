"""What a server says it was given and resolved -> the deployment to derive its page from."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hwtune.domain.deployment import Deployment
from hwtune.domain.evidence import Evidence
from hwtune.domain.launch import Expectation
from hwtune.domain.page_steps import PageDerivation
from hwtune.domain.vllm_command import split_command
from hwtune.domain.vllm_flags import deployment_from_flags

_DRAFT = re.compile(
    r"speculative_config=SpeculativeConfig\(method='(?P<method>\w+)'.{0,400}?num_spec_tokens=(?P<n>\d+)"
)


def given_flags(evidence: Evidence) -> Mapping[str, object]:
    """The flags that the user gave, as vLLM prints them; empty when they cannot be read."""
    text = evidence.value("user_flags")
    try:
        flags = ast.literal_eval(text) if isinstance(text, str) else {}
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {}
    return {str(name): value for name, value in flags.items()} if isinstance(flags, dict) else {}


def observed_deployment(evidence: Evidence) -> Deployment:
    """The deployment of a running or dead server: its flags, overruled by what it resolved.

    Raises:
        UsageError: a flag that moves the page has a value that cannot be.
    """
    if evidence.plan is not None:
        _, words = split_command(evidence.plan.argv)
    else:
        words = tuple(_words(given_flags(evidence)))
    deployment, _ = deployment_from_flags(words)
    return replace(deployment, **_resolved(evidence), **_draft(evidence))


def aligned_by_plugin(evidence: Evidence) -> bool:
    """Whether hwtune's plugin brought the kernels' alignment into the calculation."""
    if evidence.plan is not None:
        return evidence.plan.alignment_tokens is not None
    return any(mark.kind == "registered" for mark in evidence.marks)


def expectation_of(page: PageDerivation) -> Expectation:
    """Page and padding as derived; nothing else, for all else was taken from the server."""
    return Expectation(
        block_size=page.block_size_tokens,
        padding_pct=page.padding_pct,
        enable_prefix_caching=None,
        mamba_cache_mode=None,
        backend=None,
        kernels=(),
    )


def _words(flags: Mapping[str, object]) -> list[str]:
    words: list[str] = []
    for name, value in flags.items():
        flag = name.replace("_", "-")
        if value is True:
            words.append(f"--{flag}")
        elif value is False:
            words.append(f"--no-{flag}")
        elif value is not None:
            text = json.dumps(value) if isinstance(value, (dict, list)) else str(value)
            words.append(f"--{flag}={text}")
    return words


def _resolved(evidence: Evidence) -> dict[str, Any]:
    """Facts that the engine itself stated, by the deployment's names."""
    kinds: Mapping[str, type] = {
        "tensor_parallel_size": int,
        "max_model_len": int,
        "max_num_batched_tokens": int,
        "mamba_cache_mode": str,
        "dtype": str,
    }
    found = {name: evidence.value(name) for name in kinds}
    values: dict[str, Any] = {
        name: value for name, value in found.items() if isinstance(value, kinds[name])
    }
    caching, version = evidence.value("prefix_caching"), evidence.value("vllm_version")
    cache_dtype = evidence.value("kv_cache_dtype")
    if isinstance(caching, bool):
        values["enable_prefix_caching"] = caching
    if isinstance(version, str):
        values["version"] = version.split("+")[0]
    if isinstance(cache_dtype, str):
        values["kv_cache_dtype"] = cache_dtype
    return values


def _draft(evidence: Evidence) -> dict[str, Any]:
    config = evidence.value("engine_config")
    match = _DRAFT.search(config) if isinstance(config, str) else None
    if match is None:
        return {}
    return {"num_speculative_tokens": int(match["n"]), "speculative_method": match["method"]}
