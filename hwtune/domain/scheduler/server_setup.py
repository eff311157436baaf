"""From a model, a profile and vLLM's flags to the server that is simulated.

The page is the derived one; the groups, the pool and the budgets follow as they do in vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hwtune.domain.capacity import Capacity, capacity, state_blocks
from hwtune.domain.deployment import Deployment
from hwtune.domain.errors import InfeasibleError, InputError, UsageError
from hwtune.domain.hardware import HardwareProfile
from hwtune.domain.kernel import LayerTraits
from hwtune.domain.launch import Arm
from hwtune.domain.model import ModelShape
from hwtune.domain.page import PageDerivation, page_options
from hwtune.domain.page_rules_versions import parse_version
from hwtune.domain.planning_kernels import layer_traits
from hwtune.domain.scheduler.ascend_calls import AscendDevice, AscendLayer, AscendRunner
from hwtune.domain.scheduler.attention_work import LayerCost
from hwtune.domain.scheduler.classify import RunnerOptions
from hwtune.domain.scheduler.graphs import GraphSettings, capture_sizes
from hwtune.domain.scheduler.server_flags import (
    SchedulerFlags,
    default_budgets,
    resolved_async,
    scheduler_flags,
)
from hwtune.domain.scheduler.values import (
    NEWEST_VERSION,
    CacheGroup,
    Scenario,
    SchedulerConfig,
    Speculation,
)
from hwtune.domain.units import ceil_div

_IO_BYTES = 2
"""Bytes per element of Q and output; both are 16-bit wherever a kernel of a profile runs."""


_CUT_BY_128 = (
    "vLLM 0.32's API server on a CPU cuts prompts at multiples of 128 in mode align, not of the"
    " page, unless --block-size is given; here they are cut at the page"
)
"""Observed: prompts of 2177 and 4024 tokens ran as 2048 + 128 + 1 and 2048 + 1920 + 56 at page 896."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerQuestion:
    """The server that is asked about."""

    model: ModelShape
    profile: HardwareProfile
    deployment: Deployment
    """On the profile's platform, with the version."""
    flags: tuple[str, ...]
    """vLLM's flags, as typed."""
    arm: Arm = "candidate"
    """Whose page: vLLM's own, or the one the profile's kernels need."""
    page_tokens: int | None = None
    """Another page than the derived one."""
    budget_tokens: int | None = None
    """Another max_num_batched_tokens than the flags'."""
    chunk_tokens: int | None = None
    """Another long-prefill threshold than the flags'."""
    kv_memory_bytes: int | None = None
    """KV cache of one rank; None: the pool never limits."""
    npu: AscendDevice = "A2"
    """Which NPU, when the profile is one."""
    num_blocks: int | None = None
    """Blocks of the pool, where a running server has printed them."""
    accepted: tuple[int, ...] = (0,)
    """Accepted drafts of consecutive verifications, repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSetup:
    """Everything about a server that does not depend on the requests."""

    profile: HardwareProfile
    page: PageDerivation
    scenario: Scenario
    """Without requests."""
    layer: LayerTraits
    cost: LayerCost
    runner: RunnerOptions
    graphs: GraphSettings
    ascend: AscendRunner | None
    """Only on an NPU."""
    attention_layers: int | None
    """Full-attention layers, drafts included; None when the config hides them."""
    ranks: int
    capacity: Capacity | None
    budget_source: str
    notes: tuple[str, ...]


def server_setup(question: ServerQuestion, longest_request_tokens: int) -> ServerSetup:
    """The server, ready to be given requests.

    Args:
        longest_request_tokens: of the workload, to size a pool that never limits.

    Raises:
        InputError: the model's maximum length is unknown.
        UsageError: a flag asks for something that is not modelled.
        InfeasibleError: the engine would refuse the deployment, or a page cannot hold the state.
    """
    flags = scheduler_flags(question.flags)
    page = _page(question)
    deployment = page.deployment
    if deployment.pipeline_parallel_size > 1:
        message = "--pipeline-parallel-size: the cadence of pipeline stages is not modelled; use 1"
        raise UsageError(message)
    config, source = _config(question, flags, page)
    fits = _capacity(question, page)
    notes = page.notes
    if fits is None and question.num_blocks is None:
        notes += ("no KV memory given: the pool never limits (see --kv-cache-memory)",)
    if question.profile.engine == "vllm-ascend" and deployment.version is None:
        notes += (
            f"the scheduler of vLLM {NEWEST_VERSION} is played; --vllm-version names another",
        )
    if _cut_by_128(question, page):
        notes += (_CUT_BY_128,)
    groups = _groups(page, config.max_model_len)
    endless = 2 + config.max_num_seqs * _blocks_per_request(
        page, longest_request_tokens, len(groups)
    )
    layer = layer_traits(question.model, deployment, page)
    graphs = _graphs(question, flags, config)
    runner = RunnerOptions(
        chunked_prefill=config.chunked_prefill,
        num_speculative_tokens=deployment.num_speculative_tokens,
        speculative_method=deployment.speculative_method,
    )
    return ServerSetup(
        profile=question.profile,
        page=page,
        scenario=Scenario(
            config=config,
            num_blocks=question.num_blocks or (fits.num_blocks if fits else endless),
            groups=groups,
        ),
        layer=layer,
        cost=_cost(page, layer),
        runner=runner,
        graphs=graphs,
        ascend=_ascend(question, flags, page, runner, graphs),
        attention_layers=question.model.attention.num_layers,
        ranks=deployment.tensor_parallel_size,
        capacity=fits,
        budget_source=source,
        notes=notes,
    )


def _cut_by_128(question: ServerQuestion, page: PageDerivation) -> bool:
    on_cpu = question.profile.device == "cpu" and question.arm == "baseline"
    return on_cpu and page.mamba_cache_mode == "align" and question.deployment.block_size is None


def _capacity(question: ServerQuestion, page: PageDerivation) -> Capacity | None:
    fits = capacity(page, question.kv_memory_bytes) if question.kv_memory_bytes else None
    if fits is not None and fits.num_blocks < 2:
        message = (
            f"the KV memory holds {fits.num_blocks} blocks of this page, one of which vLLM keeps"
            " empty; give more"
        )
        raise InfeasibleError(message)
    return fits


def _cost(page: PageDerivation, layer: LayerTraits) -> LayerCost:
    elements = layer.num_heads * layer.head_size
    return LayerCost(
        flops_per_pair=4 * elements,
        kv_bytes_per_token=page.attention_bytes_per_token,
        io_bytes_per_token=2 * elements * _IO_BYTES,
    )


def _page(question: ServerQuestion) -> PageDerivation:
    options = page_options(question.model, question.deployment, question.profile)
    page = (options.required if question.arm == "candidate" else options.default).page
    tokens = question.page_tokens
    if tokens is None or tokens == page.block_size_tokens:
        return page
    size = tokens * page.attention_bytes_per_token
    if page.hybrid and size < (page.state_bytes or 0):
        message = (
            f"page {tokens}: {size:,} bytes cannot hold the recurrent state of"
            f" {page.state_bytes:,} bytes; the smallest is"
            f" {ceil_div(page.state_bytes or 0, page.attention_bytes_per_token)} tokens"
        )
        raise InfeasibleError(message)
    return replace(
        page,
        block_size_tokens=tokens,
        attention_page_bytes=size,
        mamba_page_padded_bytes=size if page.hybrid else None,
        notes=(
            *page.notes,
            f"page {tokens} as asked for, not the derived {page.block_size_tokens}",
        ),
    )


def _config(
    question: ServerQuestion, flags: SchedulerFlags, page: PageDerivation
) -> tuple[SchedulerConfig, str]:
    """(what the scheduler is told, where its budget comes from)."""
    deployment = page.deployment
    length = deployment.max_model_len or question.model.max_model_len
    if length is None:
        message = "the model's maximum length is unknown; give --max-model-len"
        raise InputError(message)
    if question.budget_tokens is not None:
        deployment = replace(deployment, max_num_batched_tokens=question.budget_tokens)
    budgets = default_budgets(
        deployment, question.profile.memory_bytes, length, flags.chunked_prefill
    )
    version = deployment.version or NEWEST_VERSION
    caching = page.enable_prefix_caching
    if caching is None:
        caching = deployment.enable_prefix_caching is not False
    config = SchedulerConfig(
        max_num_batched_tokens=budgets.tokens,
        max_num_seqs=budgets.sequences,
        max_model_len=length,
        vllm_version=version,
        max_num_active_seqs=flags.max_num_active_seqs,
        chunked_prefill=flags.chunked_prefill,
        long_prefill_token_threshold=question.chunk_tokens or flags.long_prefill_token_threshold,
        long_prefill_adaptive=flags.long_prefill_adaptive,
        policy=flags.policy,
        reserve_full_isl=flags.reserve_full_isl,
        watermark=flags.watermark,
        prefix_caching=caching,
        speculation=_speculation(deployment, question.accepted),
        async_scheduling=resolved_async(flags, deployment, parse_version(version)),
    )
    return config, budgets.source


def _speculation(deployment: Deployment, accepted: Sequence[int]) -> Speculation | None:
    if not deployment.num_speculative_tokens:
        return None
    return Speculation(
        num_tokens=deployment.num_speculative_tokens,
        method=deployment.speculative_method or "ngram",
        accepted=tuple(accepted),
    )


def _groups(page: PageDerivation, max_model_len: int) -> tuple[CacheGroup, ...]:
    """Full attention first, then the recurrent groups, all over one pool."""
    full = CacheGroup(kind="full", block_size_tokens=page.block_size_tokens)
    if not page.hybrid:
        return (full,)
    counted = capacity(page, 2**62)
    attention = counted.attention_groups if counted else 1
    recurrent = counted.recurrent_groups if counted else 3
    mode = page.mamba_cache_mode or "none"
    if mode not in ("none", "align"):
        message = f"mamba cache mode {mode!r} is not modelled; use none or align"
        raise UsageError(message)
    state = CacheGroup(
        kind="mamba",
        block_size_tokens=page.block_size_tokens if mode == "align" else max_model_len,
        mode="align" if mode == "align" else "none",
    )
    return (full,) * attention + (state,) * recurrent


def _blocks_per_request(page: PageDerivation, tokens: int, num_groups: int) -> int:
    """At least what one request ever holds."""
    return num_groups * (ceil_div(tokens, page.block_size_tokens) + state_blocks(page) + 2)


def _ascend(
    question: ServerQuestion,
    flags: SchedulerFlags,
    page: PageDerivation,
    runner: RunnerOptions,
    graphs: GraphSettings,
) -> AscendRunner | None:
    if question.profile.device != "npu":
        return None
    recurrent = question.model.recurrent if page.hybrid else None
    layer = AscendLayer(
        device=question.npu,
        head_size=question.model.attention.head_size,
        is_mla=question.model.attention.is_mla,
        int8_cache=page.deployment.kv_cache_dtype == "int8",
        sliding_window=question.model.attention.sliding_window is not None,
        speculative=runner.num_speculative_tokens > 0,
        full_decode_only=graphs.mode == "FULL_DECODE_ONLY",
        paged_sizes=flags.paged_sizes,
    )
    has_gdn = recurrent is not None and recurrent.kind == "gdn"
    return AscendRunner(options=runner, layer=layer, has_gdn=has_gdn)


def _graphs(
    question: ServerQuestion, flags: SchedulerFlags, config: SchedulerConfig
) -> GraphSettings:
    drafts = question.deployment.num_speculative_tokens
    npu = question.profile.device == "npu"
    eager = flags.eager or question.profile.device == "cpu"
    sizes = flags.capture_sizes or capture_sizes(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        num_speculative_tokens=drafts,
        npu=npu,
    )
    return GraphSettings(
        mode="NONE" if eager else flags.graph_mode or "FULL_AND_PIECEWISE",
        sizes=tuple(size for size in sizes if size <= config.max_num_batched_tokens),
        decode_query_len=1 + drafts,
        max_num_seqs=config.max_num_seqs,
    )
