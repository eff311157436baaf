"""Model ids: the local cache is enough."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hwtune.adapters.hub import resolve_model
from hwtune.domain.errors import InputError, MissingDependencyError


def test_a_path_wins(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path)) == tmp_path


def test_the_cache_is_read_without_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--Qwen--Qwen3.5-27B"
    for commit in ("aaa", "bbb"):
        (folder / "snapshots" / commit).mkdir(parents=True)
        (folder / "snapshots" / commit / "config.json").write_text("{}", encoding="utf-8")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("bbb", encoding="utf-8")
    assert resolve_model("Qwen/Qwen3.5-27B").parent.name == "bbb"


def test_without_cache_and_package_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingDependencyError, match=r"hwtune\[hub\]"):
        resolve_model("Qwen/Qwen3.5-27B")


@pytest.mark.parametrize("reference", ["nowhere", "/a/b/c", "a/b/c", "\0/x", "x" * 9000])
def test_what_is_neither_path_nor_id(reference: str) -> None:
    with pytest.raises(InputError):
        resolve_model(reference)
