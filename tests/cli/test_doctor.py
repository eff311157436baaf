"""hwtune doctor as typed: exit status, formats, and a schema that its JSON follows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "schemas" / "doctor-report.json").read_text("utf-8"))


def doctor(*arguments: str, path: str | None = None, **environ: str) -> tuple[int, str, str]:
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "TRITON_"))}
    if path is not None:
        variables["PATH"] = f"{path}:{variables['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "hwtune", "doctor", *arguments],
        env={**variables, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def conforms(value: Any, schema: dict[str, Any]) -> None:
    """The part of JSON Schema that ours uses: type, required, properties, items, enum, $ref."""
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    if "const" in schema:
        assert value == schema["const"]
    if "enum" in schema:
        assert value in schema["enum"]
    kinds = schema.get("type", [])
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer"}
    kind = "null" if value is None else names[type(value)]
    assert not kinds or kind in ([kinds] if isinstance(kinds, str) else kinds), (value, schema)
    if isinstance(value, dict):
        assert set(schema["required"]) == set(schema["properties"]) == set(value)
        for key, item in value.items():
            conforms(item, schema["properties"][key])
    if isinstance(value, list):
        for item in value:
            conforms(item, schema["items"])


def smi(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    path.chmod(0o755)
    return str(folder)


GPU = "0, NVIDIA H100 80GB HBM3, 9.0, 81559, 4, 580.105.08"


def test_the_json_follows_its_schema_and_names_the_device(tmp_path: Path) -> None:
    status, out, err = doctor("--json", path=smi(tmp_path, "nvidia-smi", GPU))
    report = json.loads(out)
    conforms(report, SCHEMA)
    assert not err
    assert report["profile"] == "sm_90"
    assert report["devices"][0]["arch"] == "sm_90"
    assert report["healthy"] is (status == 0)


def test_a_problem_is_exit_status_1_and_every_format_shows_it() -> None:
    for form in ("table", "json", "markdown"):
        status, out, _ = doctor("--format", form, TRITON_INTERPRET="1")
        assert status == 1
        assert "TRITON_INTERPRET is set" in out


def test_markdown_keeps_its_table_whole(tmp_path: Path) -> None:
    odd = smi(tmp_path, "npu-smi", "| NPU | <odd> |\n| second | line |")
    _, out, _ = doctor("--format", "markdown", path=odd)
    (row,) = [line for line in out.splitlines() if "printed no device" in line]
    assert row.replace("\\|", "").count("|") == 5
    assert "&lt;odd>" in row


def test_a_tool_that_hangs_is_unknown_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hwtune.adapters.doctor import commands
    from hwtune.cli.doctor import doctor as command

    slow = tmp_path / "rocminfo"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    defaults = commands.run.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "timeout_s", 1.0)
    with pytest.raises(typer.Exit) as end:
        command(profile="gfx936")
    assert end.value.exit_code == 1
    out = capsys.readouterr().out
    assert "rocminfo: no answer within 1 s; whether there is an ROCm GPU is not known" in out


def test_an_unknown_profile_and_a_wrong_port() -> None:
    status, _, err = doctor("--profile", "gfx1")
    assert status == 3
    assert err.count("\n") == 1
    assert doctor("--port", "0")[0] == 2
    assert "do not go together" in doctor("--json", "--format", "markdown")[2]


@pytest.mark.parametrize("name", ["/nonexistent/python", "/", "no-such-python"])
def test_a_named_python_that_is_no_program_is_bad_input(name: str) -> None:
    status, out, error = doctor("--python", name)
    assert (status, out) == (3, "")
    assert error == f"hwtune: error: --python {name}: no such program, or not executable\n"


def test_a_program_that_is_no_python_is_a_problem() -> None:
    status, out, _ = doctor("--python", "/bin/ls")
    assert status == 1
    assert "is no Python that answers" in out


def test_a_tool_cannot_steer_the_terminal(tmp_path: Path) -> None:
    path = smi(tmp_path, "npu-smi", "\x1b[2Jjunk")
    for form in ("table", "markdown"):
        _, out, _ = doctor("--format", form, path=path)
        assert "\x1b" not in out and "\\x1b[2Jjunk" in out
