"""Model ids: the local cache is enough."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from hwtune.adapters.hub import resolve_model
from hwtune.domain.errors import ExternalFailureError, InputError, MissingDependencyError


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


class _Absent(Exception):
    """Stands for EntryNotFoundError; the next for LocalEntryNotFoundError, a kind of it."""


class _Unreachable(_Absent):
    pass


@pytest.mark.parametrize("second", ["there", _Absent("404"), _Unreachable("no network")])
def test_modelopts_file_is_fetched_beside_the_config(
    second: str | Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def download(*, repo_id: str, filename: str, etag_timeout: float) -> str:
        asked.append(filename)
        if filename != "config.json" and isinstance(second, Exception):
            raise second
        return str(tmp_path / filename)

    hub, errors = ModuleType("huggingface_hub"), ModuleType("huggingface_hub.errors")
    vars(hub).update(hf_hub_download=download)
    vars(errors).update(EntryNotFoundError=_Absent, LocalEntryNotFoundError=_Unreachable)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    if isinstance(second, _Unreachable):
        with pytest.raises(ExternalFailureError, match=r"hf_quant_config\.json: 'no network'"):
            resolve_model("org/model")
    else:
        assert resolve_model("org/model") == tmp_path / "config.json"
    assert asked == ["config.json", "hf_quant_config.json"]


@pytest.mark.parametrize("reference", ["nowhere", "/a/b/c", "a/b/c", "\0/x", "x" * 9000])
def test_what_is_neither_path_nor_id(reference: str) -> None:
    with pytest.raises(InputError):
        resolve_model(reference)
