"""Which plugins vLLM will load by itself, and which of them takes over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hwtune.domain.doctor.profile_fit import Target
from hwtune.domain.doctor.records import Facts, Finding, Line, PluginEntry, PythonFacts

GENERAL = "vllm.general_plugins"
PLATFORM = "vllm.platform_plugins"
ALLOWED = "VLLM_PLUGINS"
"""Names, separated by commas, of the plugins to load; unset loads all, empty loads none
(vLLM plugins/__init__.py load_plugins_by_group, 0.8 to 0.32)."""

_UNPROBED = {"ascend": "npu"}
"""Platform plugins that claim the machine without looking for their device: vllm_ascend's
register() returns its platform class as it is (0.11 to 0.23)."""


def allowed(environ_value: str | None) -> tuple[str, ...] | None:
    """The names in VLLM_PLUGINS; None when all load."""
    return None if environ_value is None else tuple(environ_value.split(","))


def loads(entry: PluginEntry, names: tuple[str, ...] | None) -> bool:
    """Whether vLLM loads a plugin under VLLM_PLUGINS."""
    return names is None or entry.name in names


def plugin_findings(facts: Facts, target: Target) -> Iterator[Finding]:
    """The general plugins, the platform plugins, and names that mean nothing."""
    python = facts.python
    if python is None or not python.owners("vllm"):
        return
    value = facts.environ.get(ALLOWED)
    names = allowed(value)
    setting = Line(source="environment", line=None, text=f"{ALLOWED}={value}")
    evidence = () if value is None else (setting,)
    general = [p for p in python.plugins if p.group == GENERAL]
    platforms = [p for p in python.plugins if p.group == PLATFORM]
    yield _listed(general + platforms, names, evidence)
    yield from _own(python, general, names, evidence)
    yield from _platforms(python, platforms, names, target, evidence)
    yield from _unknown(python, names, evidence)


def _listed(
    entries: Sequence[PluginEntry], names: tuple[str, ...] | None, evidence: tuple[Line, ...]
) -> Finding:
    load = [entry.name for entry in entries if loads(entry, names)]
    skip = [entry.name for entry in entries if not loads(entry, names)]
    text = f"vLLM loads {', '.join(load) or 'no plugin'}"
    if skip:
        text += f"; {ALLOWED} leaves out {', '.join(skip)}"
    return Finding(
        id="plugins",
        topic="plugins",
        status="ok",
        text=text,
        evidence=(*(_line(entry) for entry in entries), *evidence),
    )


def _own(
    python: PythonFacts,
    general: Sequence[PluginEntry],
    names: tuple[str, ...] | None,
    evidence: tuple[Line, ...],
) -> Iterator[Finding]:
    mine = [entry for entry in general if entry.name == "hwtune"]
    if not mine:
        yield Finding(
            id="plugin-hwtune",
            topic="plugins",
            status="problem",
            text=f"hwtune's plugin is not installed for {python.executable}: a server of that "
            "Python gets no alignment and counts nothing",
            evidence=(Line(source=python.executable, line=None, text=f"no hwtune in {GENERAL}"),),
            advice="install hwtune into that environment (it never touches vllm or torch)",
        )
    elif not loads(mine[0], names):
        yield Finding(
            id="plugin-hwtune",
            topic="plugins",
            status="warning",
            text=f"{ALLOWED} does not name hwtune: only servers that hwtune starts itself load it",
            evidence=(_line(mine[0]), *evidence),
            advice=f"add hwtune to {ALLOWED} for servers that you start yourself",
        )


def _platforms(
    python: PythonFacts,
    platforms: Sequence[PluginEntry],
    names: tuple[str, ...] | None,
    target: Target,
    evidence: tuple[Line, ...],
) -> Iterator[Finding]:
    loaded = [entry for entry in platforms if loads(entry, names)]
    if len(loaded) > 1:
        found = ", ".join(entry.name for entry in loaded)
        yield Finding(
            id="two-platforms",
            topic="plugins",
            status="warning",
            text=f"{len(loaded)} platform plugins load ({found}); when more than one claims the "
            "machine, vLLM stops with: Only one platform plugin can be activated",
            evidence=(*(_line(entry) for entry in loaded), *evidence),
            advice=f"name the one you want in {ALLOWED}",
        )
    general = [entry for entry in python.plugins if entry.group == GENERAL]
    for entry in platforms:
        others = [item.name for item in general if item.distribution != entry.distribution]
        kept = [name for name in names or (*others, "hwtune") if name != entry.name]
        yield from _platform(entry, names, target, kept, evidence)


def _platform(
    entry: PluginEntry,
    names: tuple[str, ...] | None,
    target: Target,
    kept: Sequence[str],
    evidence: tuple[Line, ...],
) -> Iterator[Finding]:
    device = _UNPROBED.get(entry.name)
    lines = (_line(entry), *evidence)
    if device is None:
        return
    if loads(entry, names) and target.kind != device:
        yield Finding(
            id=f"platform-{entry.name}",
            topic="plugins",
            status="problem",
            text=f"the platform plugin {entry.name} takes vLLM over on this machine, which has no "
            f"{device}: it does not look for its device first",
            evidence=lines,
            advice=f"export {ALLOWED}={','.join(dict.fromkeys(kept))}, or uninstall {entry.distribution}",
        )
    elif not loads(entry, names) and target.kind == device:
        yield Finding(
            id=f"platform-{entry.name}",
            topic="plugins",
            status="problem",
            text=f"{ALLOWED} leaves out the platform plugin {entry.name}: vLLM will not know the "
            f"{device}",
            evidence=lines,
            advice=f"add {entry.name} to {ALLOWED}",
        )


def _unknown(
    python: PythonFacts, names: tuple[str, ...] | None, evidence: tuple[Line, ...]
) -> Iterator[Finding]:
    installed = {entry.name for entry in python.plugins if entry.group.startswith("vllm.")}
    unknown = [name for name in names or () if name and name not in installed]
    if unknown:
        yield Finding(
            id="plugins-unknown",
            topic="plugins",
            status="warning",
            text=f"{ALLOWED} names {', '.join(unknown)}, and no plugin of that name is installed",
            evidence=evidence,
            advice="entry points have names of their own: hwtune doctor lists them above",
        )


def _line(entry: PluginEntry) -> Line:
    return Line(
        source=f"{entry.distribution}, {entry.group}",
        line=None,
        text=f"{entry.name} = {entry.value}",
    )
