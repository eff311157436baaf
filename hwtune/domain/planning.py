"""From a model, a profile and the user's vLLM flags to a :class:`LaunchPlan`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hwtune.domain.deployment import Deployment
from hwtune.domain.errors import InfeasibleError, InputError, UsageError
from hwtune.domain.hardware import HardwareProfile
from hwtune.domain.launch import (
    AddedFlag,
    Arm,
    Expectation,
    LaunchPlan,
    VllmInstall,
)
from hwtune.domain.launch_environment import PLUGINS_VARIABLE, Workers, launch_environment
from hwtune.domain.model import ModelShape
from hwtune.domain.page import PageDerivation, derive_page
from hwtune.domain.page_options import default_page, profile_deployment
from hwtune.domain.planning_ascend import AscendAdditions, ascend_additions
from hwtune.domain.planning_kernels import usable_kernels
from hwtune.domain.vllm_flags import deployment_from_flags

CUSTOM_BACKEND = "CUSTOM"
"""vLLM's registry entry for a backend from outside (v1/attention/backends/registry.py)."""

_WITH_VALUE = ("--host", "--port", "--served-model-name", "--attention-backend")
"""Flags that hwtune reads or completes; without a value one would swallow what hwtune adds."""

_UNREACHABLE = ("--uds", "--ssl-keyfile", "--ssl-certfile")
"""Flags that move the server to where hwtune, which speaks plain HTTP to a port, cannot watch it."""

_GRANULARITY_SINCE = (0, 20)
"""From 0.20 --block-size is the granularity the page is rounded to; before, it is the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRequest:
    """What the user asked for."""

    model: str
    """As vLLM will be given it."""
    shape: ModelShape
    profile: HardwareProfile
    profile_reference: str
    arm: Arm
    flags: tuple[str, ...]
    """vLLM's flags, untouched."""
    host: str
    port: int
    environ: Mapping[str, str]
    """The caller's environment."""
    checked_rate: float = 0.0
    """Share of the hits to compare with vLLM's own path, from 0 to 1."""
    count_attn_state: bool = False
    """Whether to count vllm-ascend's attn_state and attention calls."""
    cpu_features: frozenset[str] = frozenset()
    """Instruction sets of this machine's processor."""


def flag_value(flags: Sequence[str], name: str) -> str | None:
    """The last value of ``--name value`` or ``--name=value``; None when it is not there."""
    found = None
    for index, flag in enumerate(flags):
        key, separator, value = flag.partition("=")
        if key.replace("_", "-") != name:
            continue
        found = value if separator else next(iter(flags[index + 1 : index + 2]), None)
    return found


def plan_launch(
    request: ServerRequest,
    install: VllmInstall,
    *,
    run_id: str,
    nonce: str,
    available: Callable[[str], bool],
) -> LaunchPlan:
    """Decides everything about one server before it starts.

    Args:
        request: what the user asked for.
        install: the vLLM that will run.
        run_id: name of the run directory.
        nonce: random text for the markers.
        available: whether this hwtune ships a kernel implementation.

    Raises:
        UsageError: a flag contradicts the arm.
        InfeasibleError: vLLM would refuse the deployment.
    """
    _refuse_flags(request)
    asked, _ = deployment_from_flags(request.flags)
    on_ascend = request.profile.engine == "vllm-ascend"
    version = install.ascend_version if on_ascend else install.version
    here = dataclasses.replace(asked, version=version, cpu_features=request.cpu_features)
    deployment = profile_deployment(here, request.profile)
    candidate = request.arm == "candidate" and bool(request.profile.base_backend)
    if candidate:
        _refuse_mla(request)
    added = _added_flags(request, deployment, candidate)
    page = _derive(request, deployment, added, candidate)
    kernels, notes = usable_kernels(request.profile, request.shape, deployment, page, available)
    if request.checked_rate and not kernels:
        _refuse_checked(request.profile, notes)
    ascend = _ascend(request, install, page) if on_ascend else _NOT_ASCEND
    environment = launch_environment(
        request.environ,
        _workers(request, install, deployment),
        plugin_acts=bool(request.profile.base_backend) or request.count_attn_state,
    )
    return LaunchPlan(
        run_id=run_id,
        nonce=nonce,
        arm=request.arm,
        model=request.model,
        served_model_name=flag_value(request.flags, "--served-model-name") or request.model,
        profile=request.profile_reference,
        device=request.profile.device,
        vllm_version=install.version,
        backend_to_extend=request.profile.base_backend,
        alignment_tokens=request.profile.required_alignment_tokens if candidate else None,
        kernels=request.profile.kernels,
        checked_rate=request.checked_rate,
        count_attn_state=request.count_attn_state,
        argv=_argv(request, install, added),
        environment={**environment.variables, **ascend.environment},
        added=(*added, *ascend.added),
        host=request.host,
        port=request.port,
        expect=Expectation(
            block_size=page.block_size_tokens,
            padding_pct=page.padding_pct,
            enable_prefix_caching=page.enable_prefix_caching,
            mamba_cache_mode=page.mamba_cache_mode,
            backend=_expected_backend(request, candidate),
            kernels=kernels if candidate else (),
        ),
        notes=(
            *(*page.notes, *notes, *_checked_notes(request), *ascend.notes),
            *(*environment.notes, *_foreign_platform(request, install)),
        ),
    )


_NOT_ASCEND = AscendAdditions(environment={}, added=(), notes=())


def _ascend(request: ServerRequest, install: VllmInstall, page: PageDerivation) -> AscendAdditions:
    own = ascend_additions(
        page, request.flags, request.environ, install, counting=request.count_attn_state
    )
    if install.ascend_version is not None:
        return own
    missing = "vllm-ascend is not installed here; the newest known rule was used"
    return dataclasses.replace(own, notes=(missing, *own.notes))


def _checked_notes(request: ServerRequest) -> tuple[str, ...]:
    graphs = request.profile.device != "cpu" and "--enforce-eager" not in request.flags
    if not request.checked_rate or not graphs:
        return ()
    return ("checked mode compares no call that a graph replays; --enforce-eager compares all",)


def _refuse_flags(request: ServerRequest) -> None:
    """Flags that would make the plan untrue.

    Raises:
        UsageError: names the flag and what to do instead.
    """
    if not 0 <= request.checked_rate <= 1:
        message = f"--check-rate {request.checked_rate}: expected a share from 0 to 1"
        raise UsageError(message)
    if request.checked_rate and request.arm == "baseline":
        message = "--checked compares kernels, and --arm baseline runs none; leave one out"
        raise UsageError(message)
    if request.count_attn_state and request.profile.engine != "vllm-ascend":
        message = f"--count-attn-state counts in vllm-ascend; profile {request.profile.name} is not for it"
        raise UsageError(message)
    last = request.flags[-1].replace("_", "-") if request.flags else ""
    if last in _WITH_VALUE:
        message = f"{request.flags[-1]}: a value is missing"
        raise UsageError(message)
    names = {flag.partition("=")[0].replace("_", "-") for flag in request.flags}
    if "--config" in names:
        message = "--config: the plan must see vLLM's flags; write the file's contents on the command line"
        raise UsageError(message)
    for name in _UNREACHABLE:
        if name in names:
            message = f"{name}: hwtune watches the server over plain HTTP on a port; leave it out"
            raise UsageError(message)


def _refuse_checked(profile: HardwareProfile, notes: tuple[str, ...]) -> None:
    """A checked server that runs no kernel would prove nothing and say that all is well.

    Raises:
        UsageError: why there is nothing to compare.
    """
    why = "; ".join(notes) or f"profile {profile.name} has no kernels"
    message = f"--checked has nothing to compare: {why}"
    raise UsageError(message)


def _refuse_mla(request: ServerRequest) -> None:
    """vLLM takes a backend for MLA layers only if it says that it is one; hwtune's is none.

    Raises:
        InfeasibleError: the model's attention is multi-head latent attention.
    """
    if request.shape.attention.is_mla:
        message = (
            f"{request.model}: its attention is MLA, which hwtune's backend on top of "
            f"{request.profile.base_backend} does not compute, so vLLM would refuse it; "
            "use --arm baseline"
        )
        raise InfeasibleError(message)


def _expected_backend(request: ServerRequest, candidate: bool) -> str | None:
    """The backend that must be in use; None where vLLM's own choice is not known beforehand."""
    attention = request.shape.attention
    if attention.num_layers == 0 or (attention.is_mla and request.profile.device == "cpu"):
        return None
    if request.profile.device == "cpu":
        return request.profile.base_backend
    return CUSTOM_BACKEND if candidate else flag_value(request.flags, "--attention-backend")


def _derive(
    request: ServerRequest,
    deployment: Deployment,
    added: tuple[AddedFlag, ...],
    candidate: bool,
) -> PageDerivation:
    profile = request.profile
    if not candidate:
        return default_page(request.shape, deployment, profile)
    block_size = next((int(a.value) for a in added if a.name == "--block-size"), None)
    effective = dataclasses.replace(deployment, block_size=deployment.block_size or block_size)
    alignment = profile.required_alignment_tokens
    return derive_page(request.shape, effective, alignment_tokens=alignment)


def _added_flags(
    request: ServerRequest, deployment: Deployment, candidate: bool
) -> tuple[AddedFlag, ...]:
    if not candidate:
        return ()
    added = []
    if deployment.block_size is None:
        added.extend(_layout_flag(request, deployment))
    if request.profile.device != "cpu":
        given = flag_value(request.flags, "--attention-backend")
        if given not in (None, CUSTOM_BACKEND):
            message = (
                f"--attention-backend {given}: the candidate runs hwtune's own backend on top of "
                f"{request.profile.base_backend}; leave the flag out, or use --arm baseline"
            )
            raise UsageError(message)
        reason = f"hwtune's backend: {request.profile.base_backend} plus the profile's kernels"
        added.append(AddedFlag(name="--attention-backend", value=CUSTOM_BACKEND, reason=reason))
    return tuple(added)


def _layout_flag(request: ServerRequest, deployment: Deployment) -> list[AddedFlag]:
    """How the alignment reaches vLLM's calculation when the backend's declaration is not enough."""
    alignment = request.profile.required_alignment_tokens
    if request.shape.recurrent is None:
        return []
    if version_tuple(str(deployment.version)) < _GRANULARITY_SINCE:
        page = derive_page(request.shape, deployment, alignment_tokens=alignment)
        tokens = -(-page.block_size_tokens // alignment) * alignment
        reason = "vLLM before 0.20 takes its alignment from nowhere else and keeps this page as is"
        return [AddedFlag(name="--block-size", value=str(tokens), reason=reason)]
    if request.profile.device == "cpu":
        reason = "vLLM's CPU platform starts from 128; this is the granularity it rounds to"
        return [AddedFlag(name="--block-size", value=str(alignment), reason=reason)]
    return []


def version_tuple(version: str) -> tuple[int, int]:
    """Major and minor of a version, local parts of forks ignored.

    Raises:
        InputError: the text does not start with two numbers.
    """
    parts = version.split("+")[0].lstrip("v").split(".")
    try:
        return int(parts[0]), int(parts[1])
    except (ValueError, IndexError):
        message = f"vLLM version {version!r} is not of the form major.minor.patch"
        raise InputError(message) from None


def _argv(
    request: ServerRequest, install: VllmInstall, added: tuple[AddedFlag, ...]
) -> tuple[str, ...]:
    model = ("--model", request.model) if install.model_as_flag else (request.model,)
    own = [text for flag in added for text in (flag.name, flag.value)]
    address = []
    if flag_value(request.flags, "--host") is None:
        address += ["--host", request.host]
    if flag_value(request.flags, "--port") is None:
        address += ["--port", str(request.port)]
    return (*install.command, *model, *request.flags, *own, *address)


def _workers(request: ServerRequest, install: VllmInstall, deployment: Deployment) -> Workers:
    replicas = flag_value(request.flags, "--data-parallel-size") or flag_value(request.flags, "-dp")
    backends = ("--distributed-executor-backend", "--data-parallel-backend", "-dpb")
    return Workers(
        vllm_version=install.version,
        names_ray=any(flag_value(request.flags, name) == "ray" for name in backends),
        count=deployment.tensor_parallel_size
        * deployment.pipeline_parallel_size
        * (int(replicas) if replicas and replicas.isdigit() else 1),
    )


def _foreign_platform(request: ServerRequest, install: VllmInstall) -> tuple[str, ...]:
    """vllm-ascend's platform plugin wins wherever it is installed, with an NPU or without."""
    allowed = request.environ.get(PLUGINS_VARIABLE)
    loads = allowed is None or "ascend" in allowed.split(",")
    if install.ascend_version is None or request.profile.device == "npu" or not loads:
        return ()
    note = (
        f"vllm-ascend {install.ascend_version} is installed and takes every vLLM here for an NPU's; "
        f"keep it out with {PLUGINS_VARIABLE}=hwtune (and the names of other plugins you need)"
    )
    return (note,)
