"""The matrix as a Parquet file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hwtune.cli import build_app
from hwtune.domain.errors import ExternalFailureError, MissingDependencyError, UsageError

MODEL = str(Path(__file__).parents[2] / "examples" / "tiny-qwen3.5")
MATRIX = ["derive-page", MODEL, "--profile", "cpu", "--matrix", "align=16,64 tp=1,7"]


def invoke(*arguments: str) -> None:
    result = CliRunner().invoke(build_app(list(arguments)), arguments, standalone_mode=False)
    if result.exception is not None:
        raise result.exception


def test_the_file_holds_the_rows_of_the_table(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "pages.parquet"
    invoke(*MATRIX, "--parquet", str(path))
    rows = parquet.read_table(path).to_pylist()
    assert [row["block_size"] for row in rows] == [784, None, 832, None]
    assert "divisible by tensor parallel size (7)" in rows[1]["refusal"]
    assert list(tmp_path.iterdir()) == [path]


def test_a_name_that_looks_like_an_address_is_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    invoke(*MATRIX, "--parquet", "s3://bucket/pages.parquet")
    assert (tmp_path / "s3:" / "bucket" / "pages.parquet").stat().st_size > 0


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "nowhere").touch()
    with pytest.raises(ExternalFailureError, match=r"nowhere/pages\.parquet: cannot be written"):
        invoke(*MATRIX, "--parquet", str(tmp_path / "nowhere" / "pages.parquet"))


def test_without_pyarrow_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"hwtune\[report\]"):
        invoke(*MATRIX, "--parquet", str(tmp_path / "pages.parquet"))


def test_it_belongs_to_a_matrix(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--parquet needs --matrix"):
        invoke("derive-page", MODEL, "--parquet", str(tmp_path / "x"))
