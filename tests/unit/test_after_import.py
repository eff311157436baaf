"""Waiting for a module to be imported, with Python's own import system."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hwtune.adapters.vllm.after_import import after_import


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "awaited").mkdir()
    (tmp_path / "awaited" / "__init__.py").write_text("")
    (tmp_path / "awaited" / "late.py").write_text("value = 1\n")
    (tmp_path / "awaited" / "broken.py").write_text("raise RuntimeError('no device')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield "awaited.late"
    for name in ("awaited", "awaited.late", "awaited.broken"):
        sys.modules.pop(name, None)


def test_the_action_runs_once_after_the_module_and_before_its_importer(package: str) -> None:
    seen: list[int] = []

    def action(module: Any) -> None:
        seen.append(module.value)
        module.value = 2

    after_import(package, action)
    assert package not in sys.modules
    assert seen == []
    module = importlib.import_module(package)
    assert (seen, module.value) == ([1], 2)
    del sys.modules[package]
    assert importlib.import_module(package).value == 1
    assert seen == [1]


def test_a_module_that_is_there_is_not_waited_for(package: str) -> None:
    importlib.import_module(package)
    seen: list[str] = []
    after_import(package, lambda module: seen.append(module.__name__))
    assert seen == [package]


def test_all_actions_run_in_order(package: str) -> None:
    seen: list[int] = []
    after_import(package, lambda module: seen.append(1))
    after_import(package, lambda module: seen.append(2))
    importlib.import_module(package)
    assert seen == [1, 2]


def test_a_module_that_fails_fails_as_ever_and_runs_nothing(package: str) -> None:
    seen: list[int] = []
    after_import("awaited.broken", lambda module: seen.append(1))
    with pytest.raises(RuntimeError, match="no device"):
        importlib.import_module("awaited.broken")
    assert seen == []


def test_a_module_that_does_not_exist_is_still_missing(package: str) -> None:
    after_import("awaited.nothing", lambda module: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("awaited.nothing")
