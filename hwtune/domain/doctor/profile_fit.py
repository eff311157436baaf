"""Which hardware profile fits the devices that are there, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hwtune.domain.doctor.records import Device, DeviceKind, Finding, Line, Status
from hwtune.domain.hardware import HardwareProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the server is to run on: decided by the named profile, else by the devices."""

    kind: DeviceKind | None
    device: Device | None
    """The device that decided; None when there is none of that kind."""
    profile: HardwareProfile | None


def is_for(profile: HardwareProfile, device: Device) -> bool:
    """Whether the profile's name or one of its aliases is the device's architecture.

    A CPU profile is for any CPU: what differs between CPUs is measured, not declared.
    """
    if profile.device != device.kind:
        return False
    if device.kind == "cpu":
        return True
    names = {name.lower() for name in (profile.name, *profile.aliases)}
    return device.arch is not None and device.arch.lower() in names


def choose(
    found: Sequence[Device], profiles: Sequence[HardwareProfile], named: HardwareProfile | None
) -> Target:
    """The named profile and the device it is for; without a name, the first device decides."""
    if named is not None:
        mine = [device for device in found if device.kind == named.device]
        fitting = [device for device in mine if is_for(named, device)]
        device = next(iter(fitting or mine), None)
        return Target(kind=_kind(named.device), device=device, profile=named)
    device = next(iter(found), None)
    if device is None:
        return Target(kind=None, device=None, profile=None)
    fitting_profiles = [profile for profile in profiles if is_for(profile, device)]
    profile = next(iter(fitting_profiles), None)
    return Target(kind=device.kind, device=device, profile=profile)


def _kind(device: str) -> DeviceKind | None:
    kinds: tuple[DeviceKind, ...] = ("cuda", "rocm", "npu", "cpu")
    return next((kind for kind in kinds if kind == device), None)


def profile_findings(
    target: Target, found: Sequence[Device], profiles: Sequence[HardwareProfile], *, named: bool
) -> Iterator[Finding]:
    """Why the profile fits, or which other one would."""
    if named and target.profile is not None:
        yield _named(target.profile, target, found, profiles)
    elif target.device is not None:
        yield _unnamed(target, target.device, profiles)
    yield from _mixed(target, found)


def _mixed(target: Target, found: Sequence[Device]) -> Iterator[Finding]:
    """One server over devices of two architectures compiles and times for neither."""
    mine = [device for device in found if device.kind == target.kind]
    archs = dict.fromkeys(device.arch for device in mine if device.arch)
    if len(archs) > 1:
        yield Finding(
            id="mixed-devices",
            topic="profile",
            status="warning",
            text=f"devices of {len(archs)} architectures are visible: {', '.join(archs)}",
            evidence=tuple(device.evidence for device in mine[:4]),
            advice="show a server one kind (CUDA_, HIP_ or ASCEND_RT_VISIBLE_DEVICES)",
        )


def why_not(profile: HardwareProfile, device: Device) -> str:
    """Why a profile is not for a device, in a few words; empty when it is."""
    if is_for(profile, device):
        return ""
    if profile.device != device.kind:
        return f"it is for {profile.device}, the device is {device.kind}"
    names = ", ".join((profile.name, *profile.aliases))
    return f"it names {names}, the device is {device.arch or 'of an unstated architecture'}"


def _named(
    profile: HardwareProfile,
    target: Target,
    found: Sequence[Device],
    profiles: Sequence[HardwareProfile],
) -> Finding:
    other = _fitting(found, profiles)
    advice = f"use --profile {other}" if other else "write a profile for it: see hwtune profiles"
    if target.device is None:
        seen = ", ".join(dict.fromkeys(f"{device.name} ({device.kind})" for device in found))
        return _finding(
            "problem",
            f"profile {profile.name} is for {profile.device}, and no such device was seen "
            f"(seen: {seen or 'nothing'})",
            target,
            advice,
        )
    if is_for(profile, target.device):
        return _finding("ok", f"profile {profile.name} is for {_label(target.device)}", target)
    if target.device.arch is None:
        return _finding(
            "unknown",
            f"{target.device.name}: its architecture is not stated, so whether profile "
            f"{profile.name} is for it is not known",
            target,
            "rocminfo (ROCm) or a newer nvidia-smi states it",
        )
    return _finding(
        "problem",
        f"profile {profile.name} does not name {target.device.arch} "
        f"(it names {', '.join((profile.name, *profile.aliases))})",
        target,
        advice,
    )


def _unnamed(target: Target, device: Device, profiles: Sequence[HardwareProfile]) -> Finding:
    if target.profile is not None:
        found = _finding("ok", f"profile {target.profile.name} fits {_label(device)}", target)
    elif device.arch is None:
        found = _finding(
            "unknown",
            f"{device.name}: its architecture is not stated, so no profile was chosen",
            target,
            "name one with --profile",
        )
    else:
        kin = [profile.name for profile in profiles if profile.device == device.kind]
        found = _finding(
            "warning",
            f"no profile is for {_label(device)}; of the same kind: {', '.join(kin) or 'none'}",
            target,
            "copy the nearest one, change what differs, name its sources, and pass the file "
            "with --profile",
        )
    return replace(found, evidence=(*found.evidence, *_reasons(profiles, device)))


def _reasons(profiles: Sequence[HardwareProfile], device: Device) -> Iterator[Line]:
    for profile in profiles:
        reason = why_not(profile, device)
        if reason:
            yield Line(source=f"profile {profile.name}", line=None, text=reason)


def _fitting(found: Sequence[Device], profiles: Sequence[HardwareProfile]) -> str | None:
    names = (profile.name for device in found for profile in profiles if is_for(profile, device))
    return next(names, None)


def _label(device: Device) -> str:
    return f"{device.name} ({device.arch})" if device.arch else device.name


def _finding(status: Status, text: str, target: Target, advice: str = "") -> Finding:
    evidence = () if target.device is None else (target.device.evidence,)
    return Finding(
        id="profile",
        topic="profile",
        status=status,
        text=text,
        evidence=evidence,
        advice=advice,
    )
