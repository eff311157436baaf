"""How a step looks to an attention backend: Ascend's states and splits, and the gfx936 paths.

Pure functions over the rows of one step. Source of every Ascend rule: vllm-ascend 182b75ea84
(for vLLM 0.27.1); the text of ``_build_attn_state`` is the same since v0.18.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

AscendState = Literal[
    "PrefillNoCache", "PrefillCacheHit", "DecodeOnly", "ChunkedPrefill", "SpecDecoding"
]
"""Names of ``AscendAttentionState`` (vllm-ascend attention/attention_v1.py)."""

HygonPath = Literal["vendor_prefill", "page_decode", "generic"]

HYGON_LONGEST_QUERY_TOKENS: Final = 4096
"""Published condition of the gfx936 vendor path: one sequence, 1 < q <= 4096."""

DRAFTED_STATE_METHOD: Final = "mtp"
"""The one speculative method that vllm-ascend gives a state of its own."""


class BatchRow(NamedTuple):
    """One request in one step. A tuple, because a step has hundreds and a run millions."""

    scheduled_tokens: int
    """Tokens the step computes for the request, draft tokens included."""
    computed_tokens: int
    """The cursor before the step."""
    draft_tokens: int
    """How many of the scheduled tokens are drafts."""
    prompt_tokens: int
    """Length of the prompt; outputs that a preempted request computes again do not count."""

    @property
    def context_tokens(self) -> int:
        """KV the request has once the step ran."""
        return self.computed_tokens + self.scheduled_tokens

    @property
    def is_prefilling(self) -> bool:
        """vLLM's own test (0.32 v1/worker/gpu_model_runner.py, ``is_prefilling``)."""
        return self.computed_tokens < self.prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """What a model runner knows beside the rows."""

    chunked_prefill: bool = True
    num_speculative_tokens: int = 0
    speculative_method: str | None = None
    """None: no speculative decoding."""
    pooling: Literal["no", "encoder only", "decoder"] = "no"
    """Whether the model pools; only Ascend's runner v2 asks."""


class Split(NamedTuple):
    """Decode rows stand in front; the counts say where the prefill rows begin."""

    num_decodes: int
    num_prefills: int
    num_decode_tokens: int
    num_prefill_tokens: int


class GdnGroups(NamedTuple):
    """The three kinds of rows of a GDN layer."""

    num_drafted: int
    num_decodes: int
    num_prefills: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendClasses:
    """Every class that vllm-ascend gives one step."""

    v1: AscendState
    """What runner v1 stores, so what attention sees."""
    v1_returned: AscendState
    """What runner v1 returns, so what ``with_prefill`` sees."""
    v2: AscendState
    split: Split
    """Of full attention."""
    gdn_split: Split
    """Of GDN layers, by rows alone. With drafts in the step the real builder separates spec rows
    first: see ``gdn_groups``."""

    @property
    def with_prefill(self) -> bool:
        """Runner v1's test."""
        return self.v1_returned not in ("DecodeOnly", "SpecDecoding")


def ascend_classes(rows: Sequence[BatchRow], options: RunnerOptions) -> AscendClasses:
    """All of Ascend's classes of a step with at least one row, in scheduling order.

    The runner's persistent batch may hold rows in another order than the scheduler. That changes
    ``split`` only when a new one-token prompt stands beside longer new prompts.
    """
    returned = state_v1(rows, options)
    threshold = 1 + options.num_speculative_tokens
    ordered = reordered(rows, threshold)
    return AscendClasses(
        v1=stored_state(returned, options),
        v1_returned=returned,
        v2=state_v2(rows, options),
        split=split_rows(ordered, threshold, short_extends_are_decodes=True),
        gdn_split=split_rows(ordered, 1, short_extends_are_decodes=False),
    )


def state_v1(rows: Sequence[BatchRow], options: RunnerOptions) -> AscendState:
    """What ``NPUModelRunner._build_attn_state`` returns (worker/model_runner_v1.py)."""
    drafted: AscendState = (
        "ChunkedPrefill" if options.speculative_method is None else "SpecDecoding"
    )
    return _state(rows, options, drafted)


def stored_state(returned: AscendState, options: RunnerOptions) -> AscendState:
    """What runner v1 keeps for attention: SpecDecoding only for ``mtp``."""
    if returned == "SpecDecoding" and options.speculative_method != DRAFTED_STATE_METHOD:
        return "ChunkedPrefill"
    return returned


def state_v2(rows: Sequence[BatchRow], options: RunnerOptions) -> AscendState:
    """``build_attn_state`` of worker/v2/attn_utils.py."""
    if options.pooling != "no":
        return "PrefillNoCache" if options.pooling == "encoder only" else "PrefillCacheHit"
    has_state = options.speculative_method == DRAFTED_STATE_METHOD
    return _state(rows, options, "SpecDecoding" if has_state else "ChunkedPrefill")


def state_310p(rows: Sequence[BatchRow], options: RunnerOptions) -> AscendState:
    """Runner of the 310P (_310p/model_runner_310p.py): v1, and full drafts are SpecDecoding."""
    state = state_v1(rows, options)
    full = 1 + options.num_speculative_tokens
    drafted = options.speculative_method is not None and state != "PrefillNoCache"
    if drafted and all(row.scheduled_tokens == full for row in rows):
        return "SpecDecoding"
    return state


def _state(
    rows: Sequence[BatchRow], options: RunnerOptions, all_but_drafts_single: AscendState
) -> AscendState:
    if not any(row[1] for row in rows):
        return "PrefillNoCache"
    if all(row[0] == 1 for row in rows):
        mtp = options.speculative_method == DRAFTED_STATE_METHOD
        return "SpecDecoding" if mtp else "DecodeOnly"
    if all(row[0] - row[2] == 1 for row in rows):
        return all_but_drafts_single
    return "ChunkedPrefill" if options.chunked_prefill else "PrefillCacheHit"


def reordered(rows: Sequence[BatchRow], threshold: int) -> Sequence[BatchRow]:
    """The rows as decode, short extend, long extend, new prompt, by the swaps vLLM does.

    Source: vLLM 0.32 v1/attention/backends/utils.py reorder_batch_to_split_decodes_and_prefills.
    """
    regions = [_region(row, threshold) for row in rows]
    wanted = sorted(regions)
    if regions == wanted:
        return rows
    moved = [at for at, region in enumerate(regions) if region != wanted[at]]
    sources = sorted(moved, key=regions.__getitem__)
    result = list(rows)
    for source, destination in zip(sources, moved, strict=True):
        result[destination] = rows[source]
    return result


def _region(row: BatchRow, threshold: int) -> int:
    scheduled, computed, _, prompt = row
    if computed == 0:
        return 3
    if scheduled > threshold:
        return 2
    return 1 if computed < prompt else 0


def split_rows(
    ordered: Sequence[BatchRow], threshold: int, *, short_extends_are_decodes: bool
) -> Split:
    """Where decode ends and prefill begins in reordered rows.

    Source: vllm-ascend attention/utils.py split_decodes_and_prefills, require_uniform off.
    """
    tokens = sum(row[0] for row in ordered)
    decodes = 0
    decode_tokens = 0
    for row in ordered:
        scheduled, computed, _, prompt = row
        if scheduled > threshold or (not short_extends_are_decodes and computed < prompt):
            break
        decodes += 1
        decode_tokens += scheduled
    return Split(decodes, len(ordered) - decodes, decode_tokens, tokens - decode_tokens)


def gdn_groups(rows: Sequence[BatchRow]) -> GdnGroups:
    """Rows of a step that the GDN builder verifies as drafts, decodes and prefills.

    Beside drafted rows nothing is a decode: a plain one-token row then runs as a prefill.
    Source: vllm-ascend ops/gdn_attn_builder.py; vLLM 0.32 v1/attention/backends/gdn_attn.py.
    """
    drafted = sum(row.draft_tokens > 0 for row in rows)
    if drafted:
        return GdnGroups(drafted, 0, len(rows) - drafted)
    split = split_rows(reordered(rows, 1), 1, short_extends_are_decodes=False)
    return GdnGroups(0, split.num_decodes, split.num_prefills)


def hygon_path(scheduled: Iterable[int]) -> HygonPath:
    """Path of a gfx936 step by its shape alone, from the tokens of each row.

    The static conditions (dtype, heads, page) belong to the profile's kernels, and so does
    whether the page-contiguous decode takes several sequences at once. A lone
    verification step has the shape of a short prefill; that the kernel refuses it needs to know of
    the drafts (``domain/kernel.py`` ``is_verification``).
    """
    tokens = tuple(scheduled)
    if max(tokens) == 1:
        return "page_decode"
    alone = len(tokens) == 1 and tokens[0] <= HYGON_LONGEST_QUERY_TOKENS
    return "vendor_prefill" if alone else "generic"
