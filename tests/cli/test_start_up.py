"""Starting fast is a property of what gets imported, so that is what is tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

HEAVY = {"rich", "pandas", "numpy", "scipy", "torch", "triton", "vllm", "huggingface_hub"}
HELP = [
    ("--help",),
    ("--version",),
    ("derive-page", "--help"),
    ("serve", "--help"),
    ("verify-markers", "--help"),
    ("ab-bench", "serving", "--help"),
    ("profiles", "list"),
    ("doctor", "--help"),
    ("derive-page", "examples/tiny-qwen3.5", "--profile", "cpu"),
]
CODE = """
import json, sys
sys.argv = ["hwtune", *json.loads(sys.argv[1])]
from hwtune.cli import main
try:
    main()
except SystemExit as end:
    status = end.code or 0
else:
    status = 0
json.dump([status, sorted({name.partition(".")[0] for name in sys.modules})], sys.stderr)
"""


@pytest.mark.parametrize("arguments", HELP, ids=" ".join)
def test_nothing_heavy_is_loaded(arguments: tuple[str, ...]) -> None:
    result = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(arguments)],
        capture_output=True,
        text=True,
        check=True,
    )
    status, loaded = json.loads(result.stderr)
    assert status == 0, result.stdout
    assert result.stdout
    assert not HEAVY & set(loaded)


def test_a_help_text_needs_no_rule_of_pages_and_no_pattern_of_logs() -> None:
    code = CODE.replace('name.partition(".")[0]', "name")
    command = [sys.executable, "-c", code, '["--help"]']
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not {"hwtune.domain.log_lines", "hwtune.domain.page_derive"} & set(
        json.loads(result.stderr)[1]
    )


def _main(body: str, stdout: int | IO[bytes]) -> tuple[int, str]:
    """hwtune's entry point with a command that does ``body``."""
    code = f"""
import sys
import hwtune.cli as cli
def command(*_):
    {body}
cli.build_app = lambda arguments: command
sys.argv = ["hwtune", "doctor"]
cli.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False
    )
    return done.returncode, done.stderr


def test_a_bug_never_reads_as_the_answer_no() -> None:
    status, said = _main("[][0]", subprocess.PIPE)
    assert status == 6
    assert said.startswith("hwtune: error: IndexError: list index out of range (<string>:5): a bug")
    assert said.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a full device")
def test_a_full_disk_below_standard_output_is_one_line_and_status_6() -> None:
    with Path("/dev/full").open("wb") as full:
        status, said = _main("print('x')", full)
    assert status == 6
    assert said == "hwtune: error: no room to write to: [Errno 28] No space left on device\n"


def test_half_a_character_prints_as_an_escape() -> None:
    code = "import sys; sys.argv = ['hwtune', 'no\\udcff']; from hwtune.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no\\udcff" in done.stderr


def test_a_reader_that_has_gone_is_no_answer() -> None:
    code = (
        "import sys; sys.argv = ['hwtune', 'profiles', 'list']; from hwtune.cli import main; main()"
    )
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


EVIL = "no\x1b]0;owned\x07\x1b[2J"


@pytest.mark.parametrize("body", [f"print({EVIL!r})", f"print({EVIL!r}, file=sys.stderr)"])
def test_nothing_that_is_printed_steers_the_terminal(body: str) -> None:
    code = f"""
import sys
import hwtune.cli as cli
cli.build_app = lambda arguments: lambda: {body}
sys.argv = ["hwtune"]
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == "no\\x1b]0;owned\\x07\\x1b[2J\n"


@pytest.mark.parametrize("arguments", [[EVIL], ["derive-page", f"a\n{EVIL}"], ["doctor", EVIL]])
def test_an_error_repeats_what_was_typed_without_its_control_characters(
    arguments: list[str],
) -> None:
    command = [sys.executable, "-m", "hwtune", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (2, 3)
    assert "no\\x1b]0;owned\\x07\\x1b[2J" in done.stderr
    assert "\x1b" not in done.stderr


def test_a_log_that_is_passed_through_keeps_its_colours() -> None:
    code = (
        "from hwtune.cli.streams import protect_streams; from hwtune.cli.serve import _show; "
        "protect_streams(); _show('\\x1b[36mINFO\\x1b[0m')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\x1b[36mINFO\x1b[0m\n"


@pytest.mark.parametrize(
    ("arguments", "status"), [(["ab-bench", "compare"], 3), (["verify-markers", "--run-dir"], 3)]
)
def test_a_name_that_no_system_takes_is_bad_input(arguments: list[str], status: int) -> None:
    command = [sys.executable, "-m", "hwtune", *arguments, "x" * 300]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert "File name too long" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_interrupt_while_loading_is_no_traceback() -> None:
    code = (
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'hwtune.cli': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from hwtune.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "hwtune: interrupted\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("arguments", "status"), [("profiles list", 0), ("profiles show x", 3)])
def test_closed_streams_change_no_exit_status(closed: str, arguments: str, status: int) -> None:
    command = f'"{sys.executable}" -m hwtune {arguments} {closed}'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
