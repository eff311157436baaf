"""Phase 3 of the platform rule: layers left unquantised share the pool with quantised ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hwtune.domain.deployment import Deployment
from hwtune.domain.model import ModelShape
from hwtune.domain.page_rules_attention import (
    quantised_bytes_per_token,
    unquantised_bytes_per_token,
)
from hwtune.domain.page_rules_backends import BackendSizes
from hwtune.domain.page_rules_common import PageOutcome, RuleInputs
from hwtune.domain.page_rules_versions import SKIP_LAYER_PHASE, Rule
from hwtune.domain.page_steps import EngineRefusalError, Trace
from hwtune.domain.units import ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipPages:
    """The shared page."""

    block_size: int
    page_bytes: int


def align_skip_layers(inputs: RuleInputs, outcome: PageOutcome, trace: Trace) -> PageOutcome:
    """The outcome after phase 3, for a hybrid model."""
    shared = shared_page(
        inputs.model,
        inputs.deployment,
        inputs.rule,
        inputs.backends[0],
        outcome.block_size,
        outcome.padded_bytes or 0,
        trace,
    )
    if shared is None:
        return outcome
    return replace(
        outcome,
        block_size=shared.block_size,
        padded_bytes=None if outcome.padded_bytes is None else shared.page_bytes,
        skip_padded_bytes=shared.page_bytes,
    )


def shared_page(
    model: ModelShape,
    deployment: Deployment,
    rule: Rule,
    backend: BackendSizes,
    block_size: int,
    padded_bytes: int,
    trace: Trace,
) -> SkipPages | None:
    """The block size at which a quantised page covers an unquantised one; None: nothing to do.

    Source: platforms/interface.py Platform._align_heterogeneous_kv_block_size (0.25 and later).

    Raises:
        EngineRefusalError: the unquantised layers would need less than the quantised ones.
    """
    if not SKIP_LAYER_PHASE.holds(rule.version):
        return None
    full = unquantised_bytes_per_token(model, deployment)
    primary = quantised_bytes_per_token(model, deployment, rule, backend)
    _check_order(full, primary)
    if full == primary:
        return None
    smallest = backend.smallest
    alignment = max(smallest, block_size)
    required = max(full * smallest, padded_bytes)
    block = max(block_size, alignment * ceil_div(required, alignment * primary))
    source = rule.source_of(SKIP_LAYER_PHASE.source)
    text = "block size whose quantised page covers an unquantised one"
    trace.add("page with skip layers", text, {"required": required}, block, "tokens", source)
    return SkipPages(block_size=block, page_bytes=block * primary)


def _check_order(full: int, primary: int) -> None:
    if full < primary:
        message = (
            f"padded-spec per-token page ({full}B) < primary ({primary}B); a higher-precision "
            "padded spec must not be smaller than the quantized primary."
        )
        raise EngineRefusalError(message, error_class="AssertionError")
