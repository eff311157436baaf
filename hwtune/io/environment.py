"""``environment.json`` of a run directory."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from hwtune.domain.environment import ServerEnvironment
from hwtune.domain.errors import InputError
from hwtune.domain.json_text import parse_json
from hwtune.io.run_dir import ENVIRONMENT_FILE, write_quietly

_PARTS = ("packages", "variables", "machine")


def write_environment(environment: ServerEnvironment, run_dir: Path) -> None:
    """Writes it beside the plan; a full disk is no reason not to serve."""
    text = json.dumps({"schema_version": 1, **asdict(environment)}, indent=1, sort_keys=True)
    write_quietly(run_dir / ENVIRONMENT_FILE, text + "\n")


def read_environment(run_dir: Path) -> ServerEnvironment | None:
    """What the launcher recorded, or None when it recorded nothing.

    Raises:
        InputError: the file is damaged.
    """
    path = run_dir / ENVIRONMENT_FILE
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        message = f"{path}: cannot read the environment: {error}"
        raise InputError(message) from None
    parts = [_texts(data.get(name) if isinstance(data, dict) else None, path) for name in _PARTS]
    packages, variables, machine = parts
    return ServerEnvironment(packages=packages, variables=variables, machine=machine)


def _texts(data: object, path: Path) -> dict[str, str]:
    if isinstance(data, dict) and all(isinstance(value, str) for value in data.values()):
        return {str(name): value for name, value in data.items()}
    message = f"{path}: not an environment file (needs {', '.join(_PARTS)} with texts)"
    raise InputError(message)
