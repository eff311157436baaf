"""Targets looked up in vLLM's sources: what fits, and each way of not fitting."""

from __future__ import annotations

from pathlib import Path

import pytest

from hwtune.adapters.vllm.discovery import find_vllm
from hwtune.adapters.vllm.source_probe import misfits
from hwtune.adapters.vllm.targets import PATCHES, Patch, Target

SOURCE = """
import enum

class Base:
    limit: int = 3
    def __init__(self, scale):
        self.scale = float(scale)
    def shared(self, one, two): ...

class Impl(Base):
    writes: bool = False
    if True:
        @property
        def guarded(self): ...
    @classmethod
    def forward(cls, layer, query, output=None): ...

class Names(enum.Enum):
    CPU = "a"

try:
    def register(backend, class_path): ...
except ImportError:
    register = None
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "__init__.py").write_text("TABLE = {}\n")
    (tmp_path / "v1" / "impl.py").write_text(SOURCE)
    return tmp_path


def impl(name: str = "", **more: object) -> Target:
    return Target(module="vllm.v1.impl", name=name, **more)  # type: ignore[arg-type]


FITTING = (
    impl(),
    impl("register", parameters=("backend", "class_path")),
    impl("Impl", members=("writes", "guarded", "forward", "scale", "limit")),
    impl("Impl", values=(("writes", False), ("limit", 3))),
    impl("Impl.forward", parameters=("layer", "query")),
    impl("Impl.shared", parameters=("one", "two")),
    impl("Names", members=("CPU",)),
    Target(module="vllm.v1", name="TABLE"),
)


@pytest.mark.parametrize("target", FITTING, ids=repr)
def test_what_is_there_fits(package: Path, target: Target) -> None:
    assert misfits(package, [target]) == []


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        (Target(module="vllm.gone"), "vllm.gone is missing"),
        (impl("Other.forward"), "vllm.v1.impl.Other.forward is missing"),
        (impl("Impl.other"), "vllm.v1.impl.Impl.other is missing"),
        (impl("Impl", members=("scale", "window")), "vllm.v1.impl.Impl has no window"),
        (impl("Names", members=("GPU",)), "vllm.v1.impl.Names has no GPU"),
        (impl("Impl", values=(("writes", True),)), "Impl does not set writes = True"),
        (
            impl("Impl.forward", parameters=("query", "layer")),
            "forward takes (layer, query, output), not (query, layer, …)",
        ),
        (
            impl("register", parameters=("backend", "class_path", "is_mamba")),
            "register takes (backend, class_path), not (backend, class_path, is_mamba, …)",
        ),
    ],
)
def test_what_is_not_there_is_named(package: Path, target: Target, complaint: str) -> None:
    (found,) = misfits(package, [target])
    assert found.endswith(complaint)


def test_a_module_that_does_not_parse_is_missing(package: Path) -> None:
    (package / "v1" / "broken.py").write_text("def (")
    target = Target(module="vllm.v1.broken")
    assert misfits(package, [target]) == ["vllm.v1.broken is missing"]


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_the_installed_vllm_has_every_target(patch: Patch) -> None:
    assert misfits(Path(find_vllm().location), patch.targets) == []
