"""``hwtune profiles`` as users call it."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from hwtune.cli import build_app
from hwtune.domain.errors import InputError


def _run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(build_app(["profiles"]), ["profiles", *arguments])
    if isinstance(result.exception, InputError):
        return result.exception.exit_status, str(result.exception)
    return result.exit_code, result.output


def test_list() -> None:
    status, output = _run("list", "--format", "json")
    rows = {row["name"]: row for row in json.loads(output)}
    assert status == 0
    assert set(rows) == {"ascend-910b", "cpu", "gfx936", "gfx942", "sm_90"}
    assert rows["gfx936"]["required_alignment_tokens"] == 64


def test_show_gives_each_number_its_source() -> None:
    status, output = _run("show", "gfx936", "--format", "json")
    sources = {row["name"]: row["source"] for row in json.loads(output)}
    assert status == 0
    assert "divisible by 64" in sources["required_alignment_tokens"]
    assert sources["memory_bytes"]


def test_validate_the_packaged_ones() -> None:
    status, output = _run("validate")
    assert (status, output.count(": good")) == (0, 5)


def test_validate_a_bad_one(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text('title = "x"\n', encoding="utf-8")
    status, output = _run("validate", "cpu", str(path))
    assert status == 3
    assert output.count("key 'device' is missing") == 1
    assert output.count("bad.toml") == 1


def test_show_an_unknown_one() -> None:
    status, output = _run("show", "sm90")
    assert (status, "did you mean sm_90" in output) == (3, True)
