"""Implementations by name: ours from the table, the user's by module and attribute."""

from __future__ import annotations

from pathlib import Path

import pytest
from hwtune_kernels import registry

MODULE = """
def plain(**arguments): return "plain"

def tuned(**arguments): return arguments
tuned.wants_max_context_len = True

class Stateful:
    def __init__(self): self.calls = 0
    def __call__(self, **arguments):
        self.calls += 1
        return self.calls

class Namespace:
    inner = staticmethod(plain)

NUMBER = 3
"""


@pytest.fixture(autouse=True)
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "users_kernels"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "decode.py").write_text(MODULE)
    broken = tmp_path / "broken_kernels"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise RuntimeError('driver too old')")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_users_function_needs_no_entry_in_the_table() -> None:
    assert registry.is_available("users_kernels.decode:plain")
    assert registry.load("users_kernels.decode:plain")() == "plain"
    assert registry.load("users_kernels.decode:Namespace.inner")() == "plain"


def test_a_tuned_kernel_is_still_known_to_want_the_longest_context() -> None:
    kernel = registry.load("users_kernels.decode:tuned", {"tile": 4})
    assert kernel(x=1) == {"x": 1, "tuning": {"tile": 4}}
    assert getattr(kernel, "wants_max_context_len", False)
    assert not hasattr(
        registry.load("users_kernels.decode:plain", {"tile": 4}), "wants_max_context_len"
    )


def test_a_class_becomes_an_instance_of_its_own_per_load() -> None:
    first, second = (registry.load("users_kernels.decode:Stateful") for _ in range(2))
    assert [first(), first(), second()] == [1, 2, 1]


@pytest.mark.parametrize(
    "name", ["nothing.of:this", "users_kernels.absent:x", "broken_kernels.x:y"]
)
def test_what_cannot_be_found_is_not_available(name: str) -> None:
    assert not registry.is_available(name)


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("users_kernels.decode:NUMBER", TypeError, "cannot be called"),
        ("users_kernels.decode:absent", AttributeError, "absent"),
        ("users_kernels.absent:x", ImportError, "absent"),
        ("broken_kernels:x", RuntimeError, "driver too old"),
        ("decode.none", KeyError, "decode.none"),
    ],
)
def test_what_cannot_be_loaded_says_why(name: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        registry.load(name)
