"""Environment variables that change what a server does without anyone noticing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hwtune.domain.doctor.engine import release
from hwtune.domain.doctor.profile_fit import Target
from hwtune.domain.doctor.records import GIB, Facts, Finding, Line, Status

_ROCM_VISIBLE = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
VISIBLE = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "rocm": _ROCM_VISIBLE,
    "npu": ("ASCEND_RT_VISIBLE_DEVICES",),
}
"""Device -> variables that hide devices from a process."""

_PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
_NO_PROXIES = ("no_proxy", "NO_PROXY")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """A variable whose presence is worth a word."""

    name: str
    applies: Callable[[str, Facts, Target], bool]
    status: Status
    text: str
    advice: str


def _is(value: str) -> Callable[[str, Facts, Target], bool]:
    return lambda given, facts, target: given == value


def _any(given: str, facts: Facts, target: Target) -> bool:
    return True


def _on(device: str) -> Callable[[str, Facts, Target], bool]:
    return lambda given, facts, target: target.kind == device


def _from(*since: int) -> Callable[[str, Facts, Target], bool]:
    """Whether the installed vLLM is of that release or newer."""
    return lambda given, facts, target: _vllm(facts) >= since


def _vllm(facts: Facts) -> tuple[int, ...]:
    owners = facts.python.owners("vllm") if facts.python else ()
    return release(owners[0].version) if owners else ()


def _two_allocators(given: str, facts: Facts, target: Target) -> bool:
    return "expandable_segments" in given and (
        "max_split_size_mb" in given or "garbage_collection_threshold" in given
    )


_RULES = (
    _Rule(
        name="HWTUNE_PLAN",
        applies=lambda given, facts, target: bool(given),
        status="warning",
        text="hwtune's plugin takes part in every vLLM that is started from this shell",
        advice="unset HWTUNE_PLAN; hwtune serve sets it for its own servers",
    ),
    _Rule(
        name="TRITON_INTERPRET",
        applies=_is("1"),
        status="problem",
        text="Triton kernels run in Python's interpreter: thousands of times slower",
        advice="unset TRITON_INTERPRET",
    ),
    _Rule(
        name="VLLM_ATTENTION_BACKEND",
        applies=_from(0, 18),
        status="warning",
        text="this vLLM does not read it any more (0.18 and newer): the backend is not what it says",
        advice="pass --attention-backend instead",
    ),
    _Rule(
        name="VLLM_USE_V1",
        applies=_is("0"),
        status="warning",
        text="the V0 engine is gone from vLLM 0.11 on; markers and pages here are V1's",
        advice="unset VLLM_USE_V1",
    ),
    _Rule(
        name="HSA_OVERRIDE_GFX_VERSION",
        applies=_on("rocm"),
        status="warning",
        text="kernels are compiled for another architecture than the device's own",
        advice="unset it on supported devices: wrong results and faults look like kernel bugs",
    ),
    _Rule(
        name="VLLM_USE_V2_MODEL_RUNNER",
        applies=lambda given, facts, target: given == "1" and target.kind == "npu",
        status="warning",
        text="vllm-ascend's second model runner is unfinished, and attn_state is not stored there",
        advice="unset it; the counts of --count-attn-state need the first runner",
    ),
    _Rule(
        name="PYTORCH_NPU_ALLOC_CONF",
        applies=_two_allocators,
        status="problem",
        text="expandable_segments cannot be combined with max_split_size_mb or "
        "garbage_collection_threshold",
        advice="keep one of them; unset, vllm-ascend sets expandable_segments:True itself",
    ),
    _Rule(
        name="ASCEND_LAUNCH_BLOCKING",
        applies=lambda given, facts, target: given == "1" and target.kind == "npu",
        status="warning",
        text="operators run one after the other, and vllm-ascend refuses graph mode with it",
        advice="unset it, or pass --enforce-eager while debugging",
    ),
    _Rule(
        name="LD_PRELOAD",
        applies=lambda given, facts, target: bool(given),
        status="ok",
        text="libraries are loaded into every process",
        advice="",
    ),
)


def environment_findings(facts: Facts, target: Target) -> Iterator[Finding]:
    """Every rule whose variable is set and applies."""
    for rule in _RULES:
        given = facts.environ.get(rule.name)
        if given is not None and rule.applies(given, facts, target):
            yield Finding(
                id=f"environment-{rule.name}",
                topic="environment",
                status=rule.status,
                text=f"{rule.name} is set: {rule.text}",
                evidence=(_line(rule.name, given),),
                advice=rule.advice,
            )
    yield from _hidden_devices(facts, target)
    yield from _proxy(facts)
    yield from _cpu_cache(facts, target)


def _hidden_devices(facts: Facts, target: Target) -> Iterator[Finding]:
    for name in VISIBLE.get(target.kind or "", ()):
        given = facts.environ.get(name)
        if given is None:
            continue
        none = given.strip() in ("", "-1", "NoDevFiles")
        yield Finding(
            id=f"environment-{name}",
            topic="environment",
            status="problem" if none else "ok",
            text=f"{name} hides every device" if none else f"{name} leaves the devices {given}",
            evidence=(_line(name, given),),
            advice=f"unset {name}" if none else "",
        )


def _proxy(facts: Facts) -> Iterator[Finding]:
    """Clients, and health checks of other tools, then ask a proxy for 127.0.0.1."""
    name = next((name for name in _PROXIES if facts.environ.get(name)), None)
    excepted = ",".join(facts.environ.get(key, "") for key in _NO_PROXIES)
    if name is None or "127.0.0.1" in excepted or "*" in excepted.split(","):
        return
    yield Finding(
        id="proxy",
        topic="environment",
        status="warning",
        text=f"{name} is set and no_proxy does not except 127.0.0.1: requests to a server on this "
        "machine go to the proxy (not hwtune's own)",
        # The value may hold a password.
        evidence=(Line(source="environment", line=None, text=f"{name} is set"),),
        advice="export no_proxy=localhost,127.0.0.1",
    )


def _cpu_cache(facts: Facts, target: Target) -> Iterator[Finding]:
    given = facts.environ.get("VLLM_CPU_KVCACHE_SPACE")
    available = facts.machine.memory_available_bytes
    if target.kind != "cpu" or given is None or available is None or not given.isdecimal():
        return
    if int(given) * GIB > available:
        yield Finding(
            id="cpu-cache",
            topic="environment",
            status="problem",
            text=f"VLLM_CPU_KVCACHE_SPACE asks for {given} GiB, {available / GIB:.1f} GiB are free",
            evidence=(_line("VLLM_CPU_KVCACHE_SPACE", given),),
            advice="lower it: weights need room too",
        )


def _line(name: str, value: str) -> Line:
    return Line(source="environment", line=None, text=f"{name}={value}"[:200])
