"""Packages that a command needs and hwtune does not bring."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from hwtune.domain.errors import MissingDependencyError


def require_package(package: str, purpose: str, advice: str = "install it there") -> None:
    """Looks for a package without importing it.

    Args:
        package: name under which it is imported.
        purpose: what needs it.
        advice: what to do where it is missing.

    Raises:
        MissingDependencyError: it is not installed for the Python that runs hwtune.
    """
    if find_spec(package) is None:
        message = f"{purpose} needs {package}, not installed for {sys.executable}; {advice}"
        raise MissingDependencyError(message)
