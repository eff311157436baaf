"""What every generation of the rule takes and gives."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from hwtune.domain.deployment import Deployment
from hwtune.domain.model import ModelShape, RecurrentShape
from hwtune.domain.page_rules_backends import BackendSizes
from hwtune.domain.page_rules_mode import CacheMode
from hwtune.domain.page_rules_versions import Rule
from hwtune.domain.page_steps import StepValue, Trace
from hwtune.domain.units import ceil_div

DEFAULT_CHUNK_SIZE = 2048
"""Tokens; vLLM's ModelConfig.get_mamba_chunk_size without a key in the config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleInputs:
    """Everything the arithmetic needs, resolved."""

    model: ModelShape
    recurrent: RecurrentShape
    deployment: Deployment
    rule: Rule
    backends: tuple[BackendSizes, ...]
    alignment_tokens: int | None
    """A granularity that replaces the release's own; None: the backends decide."""
    bytes_per_token: int
    state_bytes: int
    mode: CacheMode
    max_model_len: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOutcome:
    """What the rule leaves in vLLM's cache configuration."""

    block_size: int
    alignment_tokens: int
    mamba_block_size: int | None
    padded_bytes: int | None = None
    skip_padded_bytes: int | None = None
    rule_ran: bool = True


def smallest_page(inputs: RuleInputs, alignment: int, chunk: int | None, trace: Trace) -> int:
    """Tokens of the smallest page that holds the state, in multiples of the granularity."""
    state, token = inputs.state_bytes, inputs.bytes_per_token
    source = inputs.rule.source_of("page rule")
    values: dict[str, StepValue] = {"state bytes": state, "bytes per token": token}
    trace.add(
        "tokens to hold the state",
        "ceil(state bytes / bytes per token)",
        values,
        ceil_div(state, token),
        "tokens",
        source,
    )
    if chunk is None:
        value = alignment * ceil_div(state, alignment * token)
        text = "alignment x ceil(state bytes / (alignment x bytes per token))"
        return trace.add("page", text, {"alignment": alignment}, value, "tokens", source)
    step = lcm(chunk, alignment)
    value = step * ceil_div(ceil_div(state, token), step)
    text = "lcm(chunk, alignment) x ceil(tokens / lcm(chunk, alignment))"
    return trace.add(
        "page", text, {"chunk": chunk, "alignment": alignment}, value, "tokens", source
    )


def pad(inputs: RuleInputs, block: int, trace: Trace) -> int | None:
    """Bytes the recurrent page is padded to, or None when it fits exactly."""
    page = block * inputs.bytes_per_token
    source = inputs.rule.source_of("page rule")
    values: dict[str, StepValue] = {"page": block, "bytes per token": inputs.bytes_per_token}
    trace.add("page bytes", "page x bytes per token", values, page, "B", source)
    if page == inputs.state_bytes:
        trace.note("the page holds the state exactly: vLLM pads nothing and prints no padding line")
        return None
    text = "page bytes - state bytes"
    trace.add("padding", text, {}, page - inputs.state_bytes, "B", source)
    return page


def resolved_mamba_block(inputs: RuleInputs, block: int, all_rule_block: int | None) -> int | None:
    """``mamba_block_size`` after the rule, in tokens."""
    if all_rule_block is not None:
        return all_rule_block
    if inputs.mode.mode == "align":
        return block
    return inputs.deployment.mamba_block_size or inputs.max_model_len
