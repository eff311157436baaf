"""Something to do to a module right after it is first imported.

A plugin runs before the modules it wants to watch are imported, and must not import them itself:
vllm-ascend patches vLLM in the order in which its own modules load.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], None]


def after_import(name: str, action: Action) -> None:
    """Runs ``action`` on the module: now if it is imported already, else when it has been.

    An action must not raise: what it raises comes out of the import.
    """
    module = sys.modules.get(name)
    if module is not None:
        action(module)
        return
    finder = next((f for f in sys.meta_path if isinstance(f, _Waiting)), None)
    if finder is None:
        finder = _Waiting()
        sys.meta_path.insert(0, finder)
    finder.actions.setdefault(name, []).append(action)


class _Waiting(MetaPathFinder):
    """Finds nothing itself: lets the others find the module, and adds to its loading."""

    def __init__(self) -> None:
        self.actions: dict[str, list[Action]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The others' spec with a loader that also runs the actions; None for other modules."""
        actions = self.actions.pop(fullname, None)
        if actions is None:
            return None
        spec = importlib.util.find_spec(fullname)  # asks the finders again, without these actions
        if spec is not None and spec.loader is not None:
            _extend(spec.loader, actions)
        return spec


def _extend(loader: Any, actions: list[Action]) -> None:
    """The loader belongs to this one module, so its own method can be replaced."""
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        for action in actions:
            action(module)

    loader.exec_module = exec_module
