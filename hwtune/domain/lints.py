"""What will go wrong with a page, said before the launch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from hwtune.domain.capacity import Capacity, state_blocks
from hwtune.domain.errors import HwtuneError
from hwtune.domain.page_derive import derive_page
from hwtune.domain.page_rules_versions import BLOCK_WITHIN_TOKEN_BUDGET, RULE_IN_CONFIG, select_rule
from hwtune.domain.page_steps import PageDerivation
from hwtune.domain.units import round_up

_WASTEFUL_PCT = 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lint:
    """One finding."""

    name: str
    level: Literal["error", "warning"]
    text: str
    """What happens and what to do, in one sentence."""


def lint_page(
    page: PageDerivation,
    *,
    kernel_multiple: int = 1,
    prompt_tokens: int | None = None,
    fits: Capacity | None = None,
) -> tuple[Lint, ...]:
    """Everything found about a hybrid model's page.

    Args:
        kernel_multiple: tokens a page must be a multiple of for the profile's kernels.
        prompt_tokens: length of the prompts that prefix caching is meant to serve.
        fits: the capacity of the cache, when known.
    """
    findings = [*_length(page)]
    if page.hybrid:
        findings += _budget(page)
        findings += _kernels(page, kernel_multiple)
        findings += _prefix(page, prompt_tokens)
        findings += _states(page, fits)
        findings += _waste(page)
        findings += _fp8(page)
        findings += _ascend(page)
    return tuple(findings)


def _length(page: PageDerivation) -> Iterator[Lint]:
    asked, own = page.deployment.max_model_len, page.model.max_model_len
    if asked and own and asked > own:
        text = f"--max-model-len {asked} is above the model's {own}: vLLM refuses it"
        yield Lint(name="max-model-len", level="error", text=text)


def _budget(page: PageDerivation) -> Iterator[Lint]:
    """Align mode schedules prefill in whole pages (v1/core/sched/scheduler.py)."""
    budget = page.deployment.max_num_batched_tokens
    if page.mamba_cache_mode != "align" or budget is None:
        return
    block = page.block_size_tokens
    if block > budget:
        yield _wide_page(page, block, budget)
        return
    running = (page.deployment.max_num_seqs or 1) - 1
    decodes = running * (1 + page.deployment.num_speculative_tokens)
    if block > budget - decodes:
        safe = round_up(block + decodes, 256)
        text = (
            f"page {block} fits --max-num-batched-tokens {budget} only while fewer than "
            f"{budget - block + 1} decode tokens run: then prefill waits; use at least {safe}"
        )
        yield Lint(name="prefill-starves", level="warning", text=text)


def _wide_page(page: PageDerivation, block: int, budget: int) -> Lint:
    version = select_rule(page.deployment.engine, page.deployment.version).version
    refused = BLOCK_WITHIN_TOKEN_BUDGET.holds(version) and RULE_IN_CONFIG.holds(version)
    outcome = "vLLM refuses to start" if refused else "prefill advances in parts of a page"
    text = f"page {block} is wider than --max-num-batched-tokens {budget}: {outcome}"
    return Lint(name="page-above-budget", level="error" if refused else "warning", text=text)


def _kernels(page: PageDerivation, multiple: int) -> Iterator[Lint]:
    block, asked = page.block_size_tokens, page.deployment.block_size
    if block % multiple:
        text = f"page {block} is not a multiple of {multiple}: the profile's kernels cannot run"
        yield Lint(name="kernels-need-multiple", level="warning", text=text)
    if asked and asked % multiple:
        text = (
            f"--block-size {asked} is not a multiple of the kernels' {multiple}; use "
            f"{round_up(asked, multiple)}"
        )
        yield Lint(name="block-size-multiple", level="warning", text=text)


def _prefix(page: PageDerivation, prompt_tokens: int | None) -> Iterator[Lint]:
    if not page.enable_prefix_caching or prompt_tokens is None:
        return
    block = page.block_size_tokens
    if prompt_tokens <= block:
        text = (
            f"prefix caching cannot hit: prompts of {prompt_tokens} tokens hold no whole page of "
            f"{block} before their last token"
        )
        yield Lint(name="prefix-cannot-hit", level="warning", text=text)


def _states(page: PageDerivation, fits: Capacity | None) -> Iterator[Lint]:
    asked = page.deployment.max_num_seqs
    if fits is None or asked is None or not fits.recurrent_groups:
        return
    held = fits.recurrent_groups * state_blocks(page) + fits.attention_groups
    most = max(fits.num_blocks - 1, 0) // held
    if asked > most:
        text = (
            f"--max-num-seqs {asked}: the cache has state for {most} requests at once "
            f"({fits.num_blocks} pages, {held} per request at least)"
        )
        yield Lint(name="max-num-seqs", level="warning", text=text)


def _waste(page: PageDerivation) -> Iterator[Lint]:
    padding = page.padding_pct
    if padding is None or padding <= _WASTEFUL_PCT or page.deployment.engine != "vllm":
        return
    if page.deployment.block_size:
        text = (
            f"--block-size {page.deployment.block_size} is a granularity, not the page: page "
            f"{page.block_size_tokens} pads the state by {padding:.2f} %"
        )
    else:
        text = f"page {page.block_size_tokens} pads the state by {padding:.2f} %"
    yield Lint(name="mostly-padding", level="warning", text=text)


def _fp8(page: PageDerivation) -> Iterator[Lint]:
    """A smaller KV dtype makes the page longer, because the state does not shrink."""
    if not page.deployment.kv_cache_dtype.startswith("fp8"):
        return
    try:
        plain = derive_page(
            page.model,
            replace(page.deployment, kv_cache_dtype="auto"),
            alignment_tokens=page.alignment_tokens if not page.deployment.block_size else None,
        )
    except HwtuneError:
        return
    if page.block_size_tokens > plain.block_size_tokens:
        text = (
            f"--kv-cache-dtype {page.deployment.kv_cache_dtype} lengthens the page from "
            f"{plain.block_size_tokens} to {page.block_size_tokens} tokens: the state keeps its size"
        )
        yield Lint(name="fp8-lengthens-page", level="warning", text=text)


def _ascend(page: PageDerivation) -> Iterator[Lint]:
    asked = page.deployment.block_size
    if page.deployment.engine != "vllm-ascend" or not asked or asked < page.block_size_tokens:
        return
    derived = derive_page(page.model, replace(page.deployment, block_size=None))
    if asked > derived.block_size_tokens:
        text = (
            f"--block-size {asked} is above the {derived.block_size_tokens} at which the K half "
            "equals the state: vllm-ascend then computes wrong output"
        )
        yield Lint(name="ascend-equality", level="error", text=text)
