"""One small request to a fresh server, so that its kernels have something to take."""

from __future__ import annotations

import json
import os
import random
import time
import urllib.request
from collections.abc import Mapping

from hwtune.adapters.vllm.server import RunningServer, ask
from hwtune.domain.kernel import KernelSpec
from hwtune.domain.launch import LaunchPlan
from hwtune.domain.planning import flag_value
from hwtune.domain.planning_kernels import PROBE_OUTPUT_TOKENS

PROBE_TIMEOUT_S = 600.0
SHORTEST_PROBE_TOKENS = 32
"""vLLM 0.32's CPU build dies of a one-token prompt to a GDN model (causal_conv1d_fwd_cpu)."""
_BALANCED_OUTSIDE = {
    *("--data-parallel-rank", "-dpn", "--data-parallel-external-lb", "-dpe"),
    *("--data-parallel-hybrid-lb", "-dph", "--headless"),
}
"""With one of these a server answers for some of the engines only."""
_LOWEST_TOKEN, _HIGHEST_TOKEN = 10, 500
"""Token ids that exist in every vocabulary and are no special tokens in the usual ones."""


def probe(server: RunningServer) -> str | None:
    """Sends each engine a prompt long enough for every planned kernel; returns why it failed.

    The prompts are random token ids, new each time, so that no prefix cache answers for them.
    """
    length = probe_tokens(server.plan)
    count = engines(server.plan)
    for rank in range(count):
        named = {"X-data-parallel-rank": str(rank)} if count > 1 else {}
        failed = _complete(server, length, PROBE_OUTPUT_TOKENS, PROBE_TIMEOUT_S, named)
        if failed:
            return f"the probe request failed: {failed} (--no-probe serves without one)"
    return None


def engines(plan: LaunchPlan) -> int:
    """Data-parallel engines that vLLM balances by itself and that answer to their rank."""
    flags = {flag.partition("=")[0].replace("_", "-") for flag in plan.argv}
    given = flag_value(plan.argv, "--data-parallel-size") or flag_value(plan.argv, "-dp")
    if flags & _BALANCED_OUTSIDE or not given or not given.isdigit():
        return 1
    return max(1, int(given))


def ask_one_token(server: RunningServer, timeout_s: float) -> str | None:
    """Asks for one token, to see whether anything is computed; returns why not, or None."""
    return _complete(server, SHORTEST_PROBE_TOKENS, 1, timeout_s)


def _complete(
    server: RunningServer,
    prompt_tokens: int,
    output_tokens: int,
    timeout_s: float,
    more_headers: Mapping[str, str] | None = None,
) -> str | None:
    ids = random.Random(f"{server.plan.nonce}{time.monotonic()}")
    body = {
        "model": server.plan.served_model_name,
        "prompt": [ids.randint(_LOWEST_TOKEN, _HIGHEST_TOKEN) for _ in range(prompt_tokens)],
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": 0,
    }
    request = urllib.request.Request(
        f"{server.url}/v1/completions",
        data=json.dumps(body).encode(),
        headers={**_headers(server), **(more_headers or {})},
    )
    try:
        ask(request, timeout_s)
    except OSError as error:
        return str(error)
    return None


def _headers(server: RunningServer) -> dict[str, str]:
    """With the key that the server was told to ask for, if it was."""
    key = flag_value(server.plan.argv, "--api-key") or os.environ.get("VLLM_API_KEY")
    headers = {"Content-Type": "application/json"}
    return {**headers, "Authorization": f"Bearer {key}"} if key else headers


def probe_tokens(plan: LaunchPlan) -> int:
    """Length of the probe's prompt."""
    expected = [k for k in plan.kernels if k.name in plan.expect.kernels]
    return max([SHORTEST_PROBE_TOKENS, *(_needed_tokens(kernel) for kernel in expected)])


def _needed_tokens(kernel: KernelSpec) -> int:
    """Prompt tokens after which the kernel has had a call it takes."""
    return max(kernel.when.min_query_len, kernel.when.min_context_len)
