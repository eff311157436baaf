"""Random scenarios for the scheduler: every knob, small enough to be played a thousand times."""

from __future__ import annotations

import math
from random import Random
from typing import Any

from hwtune.domain.scheduler.values import Step

KINDS = ("full", "window", "full and window", "state", "aligned", "aligned and window", "uneven")


def random_scenario(rng: Random) -> dict[str, Any]:
    kind = rng.choice(KINDS)
    limit = rng.choice([256, 512, 2048, 8192])
    groups = _groups(rng, kind, limit)
    config = _config(rng, limit)
    kv: dict[str, Any] = {"groups": groups}
    caching = kind.startswith(("aligned", "uneven")) or (kind != "state" and rng.random() < 0.5)
    if caching:
        config["prefix_caching"] = True
    if caching and kind != "full" and rng.random() < 0.4:
        common = math.lcm(*(group["block_size"] for group in groups))
        kv["retention"] = rng.choice([None, common, 2 * common])
    size = groups[0]["block_size"]
    if kind == "aligned" and size > 16 and rng.random() < 0.4:
        kv["prefix_match_unit"] = rng.choice([8, 16])
    requests = [_request(rng, i, limit, config, caching) for i in range(rng.randint(1, 7))]
    largest = max(_blocks(request, groups) for request in requests)
    kv["num_blocks"] = 2 + int(largest * rng.choice([0.8, 1, 1.1, 1.3, 2, 5]))
    return {"name": kind, "config": config, "kv": kv, "requests": requests}


def _groups(rng: Random, kind: str, limit: int) -> list[dict[str, Any]]:
    size = rng.choice([16, 32, 64])
    full = {"type": "full", "block_size": size}
    window = {"type": "sliding_window", "block_size": size, "window": rng.choice([7, 33, 100])}
    aligned = {"type": "mamba", "block_size": size, "mode": "align"}
    if kind == "window":
        return [window]
    if kind == "full and window":
        return [full, {**window, "block_size": size * rng.choice([1, 2])}]
    if kind == "state":
        return [full, *[{"type": "mamba", "block_size": limit, "mode": "none"}] * 3]
    if kind == "aligned":
        return [full, *[aligned] * rng.choice([1, 3])]
    if kind == "aligned and window":
        return [full, window, aligned]
    if kind == "uneven":
        return [full, {**aligned, "block_size": size * rng.choice([2, 4])}]
    return [full]


def _config(rng: Random, limit: int) -> dict[str, Any]:
    seqs = rng.choice([1, 2, 3, 8])
    config: dict[str, Any] = {
        "max_num_batched_tokens": max(seqs, rng.choice([6, 16, 64, 100, 512, 2048])),
        "max_num_seqs": seqs,
        "max_model_len": limit,
        "policy": rng.choice(["fcfs", "fcfs", "priority"]),
        "reserve_full_isl": rng.random() < 0.7,
        "watermark": rng.choice([0.0, 0.0, 0.1]),
        "async": rng.random() < 0.3,
    }
    if rng.random() < 0.3:
        config["long_prefill_token_threshold"] = rng.choice([8, 50, 200])
        config["long_prefill_adaptive"] = rng.random() < 0.5
    if rng.random() < 0.1:
        config["max_num_active_seqs"] = rng.randint(1, seqs)
    if rng.random() < 0.1:
        config["max_num_scheduled_tokens"] = rng.randint(1, config["max_num_batched_tokens"])
    if rng.random() < 0.1:
        config["chunked_prefill"] = False
        config["max_num_batched_tokens"] = limit
        if "max_num_scheduled_tokens" in config:
            config["max_num_scheduled_tokens"] = min(config["max_num_scheduled_tokens"], limit)
    if rng.random() < 0.3:
        config["spec"] = _speculation(rng, asynchronous=config["async"])
    return config


def _speculation(rng: Random, *, asynchronous: bool) -> dict[str, Any]:
    drafts = rng.choice([1, 2, 4])
    method = rng.choice(["ngram", "mtp", "eagle", "draft_model"])
    spec = {"k": drafts, "method": method, "accept": [rng.randint(0, drafts) for _ in range(3)]}
    if not asynchronous and rng.random() < 0.3:
        spec["draft_lens"] = [rng.randint(0, drafts) for _ in range(2)]
    return spec


def _request(
    rng: Random, number: int, limit: int, config: dict[str, Any], caching: bool
) -> dict[str, Any]:
    prompt = rng.choice([1, rng.randint(1, 64), rng.randint(1, min(600, limit - 2))])
    request = {
        "id": f"r{number}",
        "arrival_step": rng.choice([0, 0, rng.randint(0, 20)]),
        "prompt_len": prompt,
        "output_len": rng.choice([1, rng.randint(1, 10), rng.randint(1, 50)]),
    }
    if config["policy"] == "priority":
        request["priority"] = rng.randint(0, 2)
    if caching and rng.random() < 0.6:
        length = rng.choice([prompt, 64, 200, rng.randint(1, 600)])
        request |= {"prefix_id": rng.choice("pq"), "prefix_len": length}
    return request


def _blocks(request: dict[str, Any], groups: list[dict[str, Any]]) -> int:
    tokens = request["prompt_len"] + request["output_len"]
    return sum(-(-tokens // g["block_size"]) + 2 * (g["type"] == "mamba") for g in groups)


def flat(step: Step) -> tuple[Any, ...]:
    """Everything a step says, to be compared."""
    return (
        *(step.index, step.rows, step.total, step.budget_left, step.preempted),
        *(step.running, step.waiting, dict(step.blocks), dict(step.held)),
        *(step.free, step.free_after, dict(step.out), step.finished),
    )
