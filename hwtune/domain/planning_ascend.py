"""What a plan for vllm-ascend adds: plugins, environment, and what must be said about graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hwtune.domain.errors import InfeasibleError, UsageError
from hwtune.domain.json_text import parse_json
from hwtune.domain.launch import AddedFlag, VllmInstall
from hwtune.domain.lints import lint_page
from hwtune.domain.page_rules_ascend import ALIGNMENT
from hwtune.domain.page_steps import PageDerivation

PLATFORM_PLUGIN = "ascend"
"""Entry point of vllm.platform_plugins that vllm-ascend brings (setup.py, 0.7 to 0.25)."""

DEFAULT_TOKEN_BUDGET = 2048
DEFAULT_MAX_SEQS = 256
"""What vLLM's API server takes where it does not know the device's memory, as on an NPU
(vLLM 0.18 to 0.32, engine/arg_utils.py)."""

_ALLOCATOR = "PYTORCH_NPU_ALLOC_CONF"
_SEGMENTS = "expandable_segments:True"
"""What vllm-ascend sets by itself unless sleep mode is on (platform.py); stated, so that both arms
are seen to have it."""

_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
_BLOCKING = "ASCEND_LAUNCH_BLOCKING"
_COMPILATION = ("--compilation-config", "-cc", "-O")
"""vLLM's names of the flag; each also takes ``.key value``."""
_FULL_MODES = ("FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
_KEEPS_BOTH_SINCE = (0, 20)
"""0.18 turns FULL_AND_PIECEWISE, vLLM's default, into PIECEWISE (platform.py); 0.23 keeps it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendAdditions:
    """What the plan gets on top."""

    environment: Mapping[str, str]
    added: tuple[AddedFlag, ...]
    """The variables again, each with its reason."""
    notes: tuple[str, ...]


def ascend_additions(
    page: PageDerivation,
    flags: Sequence[str],
    environ: Mapping[str, str],
    install: VllmInstall,
    *,
    counting: bool,
) -> AscendAdditions:
    """Everything that is particular to vllm-ascend.

    Args:
        page: what its page rule derived.
        flags: the user's flags for vLLM.
        environ: the caller's environment.
        install: the vLLM, its vllm-ascend and its plugins.
        counting: whether attn_state is to be counted.

    Raises:
        InfeasibleError: vllm-ascend would refuse the deployment or compute wrong output.
        UsageError: the graph mode contradicts the environment.
    """
    mode = graph_mode(flags, install.ascend_version)
    if mode != "NONE" and environ.get(_BLOCKING) == "1":
        message = (
            f"{_BLOCKING}=1 with graph mode {mode}: vllm-ascend refuses to start; unset it, or "
            "add --enforce-eager"
        )
        raise UsageError(message)
    added = tuple(_variables(flags, environ, install))
    notes = [*_page_notes(page), _graph_note(mode, counting=counting)]
    if environ.get(_AUTOLOAD) == "0":
        notes.append(
            f"{_AUTOLOAD}=0 is inherited: vllm-ascend imports torch_npu itself, so the server "
            "works; scripts that only import torch do not see the NPU"
        )
    return AscendAdditions(
        environment={flag.name: flag.value for flag in added}, added=added, notes=tuple(notes)
    )


def _variables(
    flags: Sequence[str], environ: Mapping[str, str], install: VllmInstall
) -> Iterator[AddedFlag]:
    given = environ.get("VLLM_PLUGINS")
    names = install.plugins if given is None else tuple(filter(None, given.split(",")))
    wanted = dict.fromkeys((*names, PLATFORM_PLUGIN, *_of_ascend(install), "hwtune"))
    reason = "the NPU's platform plugin and hwtune's; another platform plugin would stop vLLM"
    yield AddedFlag(name="VLLM_PLUGINS", value=",".join(wanted), reason=reason)
    if _ALLOCATOR not in environ and "--enable-sleep-mode" not in flags:
        reason = "what vllm-ascend sets by itself, said here so that it shows in a comparison"
        yield AddedFlag(name=_ALLOCATOR, value=_SEGMENTS, reason=reason)


def _of_ascend(install: VllmInstall) -> tuple[str, ...]:
    """vllm-ascend's general plugins (connectors, loaders); a list of names would leave them out."""
    return tuple(name for name in install.plugins if name.startswith(f"{PLATFORM_PLUGIN}_"))


def _page_notes(page: PageDerivation) -> Iterator[str]:
    """The lints, with vLLM's own defaults where the user says nothing.

    Raises:
        InfeasibleError: a lint that is an error.
    """
    asked = page.deployment
    full = replace(
        asked,
        max_num_batched_tokens=asked.max_num_batched_tokens or DEFAULT_TOKEN_BUDGET,
        max_num_seqs=asked.max_num_seqs or DEFAULT_MAX_SEQS,
    )
    for lint in lint_page(replace(page, deployment=full), kernel_multiple=ALIGNMENT):
        if lint.level == "error":
            raise InfeasibleError(lint.text)
        default = " (vLLM's default here)" if asked.max_num_batched_tokens is None else ""
        yield lint.text + (default if lint.name in ("prefill-starves", "page-above-budget") else "")


def graph_mode(flags: Sequence[str], ascend_version: str | None) -> str:
    """The graph mode that vllm-ascend arrives at: NONE, PIECEWISE, FULL, FULL_DECODE_ONLY or
    FULL_AND_PIECEWISE (its platform.py).

    Raises:
        UsageError: --compilation-config is not JSON.
    """
    if "--enforce-eager" in flags:
        return "NONE"
    mode = _asked_mode(flags) or "FULL_AND_PIECEWISE"
    if mode == "FULL_AND_PIECEWISE" and not _keeps_both(ascend_version):
        return "PIECEWISE"
    return mode if mode in (*_FULL_MODES, "PIECEWISE") else "NONE"


def _keeps_both(ascend_version: str | None) -> bool:
    if ascend_version is None:
        return True
    numbers = ascend_version.lstrip("v").split(".")[:2]
    return tuple(int(part) for part in numbers if part.isdecimal()) >= _KEEPS_BOTH_SINCE


def _asked_mode(flags: Sequence[str]) -> str | None:
    found = None
    for index, flag in enumerate(flags):
        name, equals, attached = flag.partition("=")
        value = attached if equals else next(iter(flags[index + 1 : index + 2]), "")
        name = name.replace("_", "-")
        option, dot, key = name.partition(".")
        if option not in _COMPILATION:
            continue
        if dot and key == "cudagraph-mode":
            found = value
        elif not dot and value.lstrip().startswith("{"):
            found = _mode_in(value) or found
    return None if found is None else found.upper()


def _mode_in(text: str) -> str | None:
    try:
        data = parse_json(text)
    except ValueError as error:
        message = f"--compilation-config: not JSON: {error}"
        raise UsageError(message) from None
    mode = data.get("cudagraph_mode")
    return None if mode is None else str(mode)


def _graph_note(mode: str, *, counting: bool) -> str:
    text = f"graph mode {mode}"
    if mode in _FULL_MODES:
        text += ": decode steps are graph replays"
        if counting:
            text += (
                ", so their attention calls are counted once, when they are recorded; attn_state "
                "is counted in every step"
            )
    elif mode == "PIECEWISE":
        text += ": attention runs between the graphs, so each call is a call"
    else:
        text += ": eager"
    return text
