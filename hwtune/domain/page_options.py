"""The page vLLM picks on a machine, the page its kernels need, and what else there is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm

from hwtune.domain.capacity import Capacity, capacity
from hwtune.domain.deployment import Deployment
from hwtune.domain.errors import InfeasibleError
from hwtune.domain.hardware import HardwareProfile
from hwtune.domain.model import ModelShape
from hwtune.domain.page_derive import derive_page
from hwtune.domain.page_rules_backends import backend_sizes
from hwtune.domain.page_rules_versions import RULE_IN_CONFIG, select_rule
from hwtune.domain.page_steps import PageDerivation

_ALIGNMENTS = (16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOption:
    """One page and what it costs."""

    page: PageDerivation
    alignments: tuple[int, ...]
    """Granularities, in tokens, that give this page."""
    suits_kernels: bool
    """Whether the page is a multiple of what the profile's kernels need."""
    extra_pct: float
    """Bytes of the page beyond the default page, in percent of the default page."""
    capacity: Capacity | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOptions:
    """All pages of a model on a machine, smallest first."""

    profile: HardwareProfile
    deployment: Deployment
    default: PageOption
    """What the engine picks by itself."""
    required: PageOption
    """What it picks when the backend declares the granularity the profile's kernels need."""
    minimum: PageOption
    """The smallest page that suits the kernels."""
    options: tuple[PageOption, ...]


def profile_deployment(deployment: Deployment, profile: HardwareProfile) -> Deployment:
    """The deployment on the profile's platform and engine."""
    device = profile.device
    platform = device if device in ("cuda", "rocm", "cpu", "xpu", "npu") else "cuda"
    return replace(deployment, engine=profile.engine, platform=platform)  # type: ignore[arg-type]


def page_options(
    model: ModelShape,
    deployment: Deployment,
    profile: HardwareProfile,
    memory_bytes: int | None = None,
    request_tokens: int | None = None,
) -> PageOptions:
    """The pages of a model on a profile's hardware.

    Args:
        memory_bytes: bytes of KV cache on one rank; without it no capacity is computed.
        request_tokens: length of the requests that capacity counts; the maximum model length
            when None.

    Raises:
        InputError: a value is unknown or missing.
        EngineRefusalError: the engine would refuse the deployment.
    """
    placed = profile_deployment(deployment, profile)
    wanted = (profile.default_alignment_tokens, profile.required_alignment_tokens)
    pages = {a: derive_page(model, placed, alignment_tokens=a) for a in wanted}
    # vllm-ascend leaves no choice: one page equals the state.
    for alignment in _ALIGNMENTS if placed.engine == "vllm" else ():
        _try(pages, model, placed, alignment)
    default = default_page(model, placed, profile)
    pages[profile.default_alignment_tokens] = default
    options = _distinct(pages, default, profile, memory_bytes, request_tokens)
    by_block = {option.page.block_size_tokens: option for option in options}
    required = pages[profile.required_alignment_tokens]
    suitable = [option for option in options if option.suits_kernels]
    chosen = by_block[required.block_size_tokens]
    return PageOptions(
        profile=profile,
        deployment=placed,
        default=by_block[default.block_size_tokens],
        required=chosen,
        minimum=suitable[0] if suitable else chosen,
        options=options,
    )


def default_page(
    model: ModelShape, deployment: Deployment, profile: HardwareProfile
) -> PageDerivation:
    """vLLM's own page: the profile's granularity, or what the backend the user names declares.

    With a user's --block-size the backend's smallest kernel block counts. Releases up to 0.19 ask
    no backend and follow a granularity of their own.

    Raises:
        InputError: a value is unknown or missing.
        EngineRefusalError: the engine would refuse the deployment.
    """
    version = select_rule(deployment.engine, deployment.version).version
    if deployment.engine == "vllm" and RULE_IN_CONFIG.holds(version):
        return derive_page(model, deployment)
    alignment = profile.default_alignment_tokens
    named = deployment.attention_backend if deployment.attention_backend != "CUSTOM" else None
    if deployment.block_size is not None:
        named = named or profile.base_backend
    if not named or deployment.engine != "vllm":
        return derive_page(model, deployment, alignment_tokens=alignment)
    return derive_page(model, deployment, backends=(backend_sizes(named, version),))


def _try(
    pages: dict[int, PageDerivation], model: ModelShape, deployment: Deployment, alignment: int
) -> None:
    if alignment in pages:
        return
    try:
        pages[alignment] = derive_page(model, deployment, alignment_tokens=alignment)
    except InfeasibleError:
        return


def _distinct(
    pages: dict[int, PageDerivation],
    default: PageDerivation,
    profile: HardwareProfile,
    memory_bytes: int | None,
    request_tokens: int | None,
) -> tuple[PageOption, ...]:
    by_block: dict[int, list[int]] = {}
    for alignment, page in sorted(pages.items()):
        by_block.setdefault(page.block_size_tokens, []).append(alignment)
    result = []
    for block, alignments in sorted(by_block.items()):
        page = pages[alignments[0]]
        whole = default.attention_page_bytes
        extra = 100 * (page.attention_page_bytes / whole - 1) if whole else 0.0
        fits = capacity(page, memory_bytes, request_tokens) if memory_bytes else None
        result.append(
            PageOption(
                page=page,
                alignments=tuple(alignments),
                suits_kernels=block % kernel_multiple(profile) == 0,
                extra_pct=extra,
                capacity=fits,
            )
        )
    return tuple(result)


def kernel_multiple(profile: HardwareProfile) -> int:
    """Tokens that a page must be a multiple of for every kernel of the profile."""
    needs = (kernel.when.block_size_multiple_of for kernel in profile.kernels)
    return lcm(profile.required_alignment_tokens, *needs)
