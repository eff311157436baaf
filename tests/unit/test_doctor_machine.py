"""The doctor's reading of this very machine: commands that hang, processes, an environment."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hwtune.adapters.doctor import commands
from hwtune.adapters.doctor.machine import read_machine
from hwtune.adapters.doctor.processes import read_processes
from hwtune.adapters.doctor.python_env import read_libraries, read_python


def script(folder: Path, name: str, body: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    """The grandchild keeps the output open; waiting for its end of file would hang too."""
    pid = tmp_path / "pid"
    hangs = script(tmp_path, "npu-smi", f"echo begin; sleep 600 & echo $! > {pid}; wait")
    output = commands.run([hangs, "info"], timeout_s=1.0)
    assert output.timed_out
    assert output.failure == "no answer within 1 s"
    assert output.stdout == "begin\n"
    grandchild = Path(f"/proc/{pid.read_text().strip()}")
    deadline = time.monotonic() + 10
    while grandchild.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not grandchild.exists() or ") Z " in (grandchild / "stat").read_text()


def test_a_command_that_fails_says_why(tmp_path: Path) -> None:
    fails = script(tmp_path, "nvidia-smi", "echo No devices were found; exit 6")
    output = commands.run([fails])
    assert output.failure == "exit status 6: No devices were found"
    assert output.installed


def test_a_traceback_is_summed_up_by_its_last_line() -> None:
    output = commands.run([sys.executable, "-c", "import nothing_of_that_name"])
    assert output.failure == (
        "exit status 1: ModuleNotFoundError: No module named 'nothing_of_that_name'"
    )


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    output = commands.run(["no-such-smi"])
    assert (output.installed, output.failure) == (False, "not installed")
    text = tmp_path / "file"
    text.write_text("not a program")
    assert not commands.run([str(text)]).installed


def test_a_program_of_another_machine(tmp_path: Path) -> None:
    wrong = tmp_path / "amd-smi"
    wrong.write_bytes(b"\x7fELF" + bytes(64))
    wrong.chmod(0o755)
    assert str(commands.run([str(wrong)]).failure).startswith("cannot be run: ")


def test_output_that_is_no_text(tmp_path: Path) -> None:
    odd = script(tmp_path, "lscpu", r"printf 'Architecture: x\377\n'")
    assert commands.run([odd]).stdout == "Architecture: x\ufffd\n"


SERVER = """
import socket, sys
s = socket.socket()
s.bind(("127.0.0.1", 0))
s.listen()
print(s.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def server() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that looks like vLLM's server on its command line, with a secret there."""
    argv = [sys.executable, "-c", SERVER, "vllm.entrypoints.openai.api_server", "--api-key", "sk-1"]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
        process.communicate("")


def test_a_server_is_found_with_its_port_and_left_alone(
    server: tuple[subprocess.Popen[str], int],
) -> None:
    process, port = server
    (found,) = [p for p in read_processes(port).processes if p.pid == process.pid]
    assert found.serves
    assert found.ports == (port,)
    assert found.parent == os.getpid()
    assert found.parent_name
    assert "sk-1" not in found.command
    assert 0 <= found.age_s < 3600
    assert process.poll() is None


def test_whoever_listens_on_the_port_is_found() -> None:
    """This process listens, and is not listed: the doctor does not report itself."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        table = read_processes(port)
    assert port in table.listening
    assert port not in read_processes(port).listening


def test_this_machine_is_read() -> None:
    machine = read_machine(8000)
    assert machine.cpus >= 1
    assert machine.memory_total_bytes is not None
    assert {space.purpose for space in machine.spaces} >= {"shared memory", "run directory"}
    assert {limit.name for limit in machine.limits} >= {"open files", "processes"}


def environment(folder: Path) -> Path:
    """An environment without pip, with packages laid out as wheels lay them out."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True
    )
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    for name, version, package, extra in (
        ("vllm", "0.18.0+empty", "vllm", "Requires-Dist: torch==2.9.0\n"),
        ("torch", "2.9.0+cpu", "torch", ""),
        ("vllm_ascend", "0.18.0", "vllm_ascend", 'Requires-Dist: torch==2.8.0; extra == "old"\n'),
    ):
        (site / package).mkdir()
        (site / package / "__init__.py").write_text("raise SystemExit('imported')\n")
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{extra}"
        )
        (info / "WHEEL").write_text("Wheel-Version: 1.0\nTag: cp311-cp311-linux_x86_64\n")
        (info / "RECORD").write_text(f"{package}/__init__.py,,\n")
    (site / "vllm" / "_version.py").write_text("__version__ = version = '0.18.0'\n")
    (site / "vllm_ascend" / "_build_info.py").write_text("__device_type__ = 'A2'\n")
    (site / "vllm_ascend-0.18.0.dist-info" / "entry_points.txt").write_text(
        "[vllm.platform_plugins]\nascend = vllm_ascend:register\n"
    )
    (site / "torch" / "lib").mkdir()
    (site / "torch" / "lib" / "libc10.so").touch()
    (site / "torch" / "lib" / "libtorch_python.so").touch()
    return folder / "venv" / "bin" / "python"


def test_an_environment_is_read_without_importing_what_is_in_it(tmp_path: Path) -> None:
    facts, failure = read_python(str(environment(tmp_path)))
    assert facts is not None, failure
    assert {d.name: (d.version, d.packages) for d in facts.distributions} == {
        "vllm": ("0.18.0+empty", ("vllm",)),
        "torch": ("2.9.0+cpu", ("torch",)),
        "vllm-ascend": ("0.18.0", ("vllm_ascend",)),
    }
    assert [(p.name, p.group) for p in facts.plugins] == [("ascend", "vllm.platform_plugins")]
    assert {file.name for file in facts.files} == {
        "vllm/_version.py",
        "vllm_ascend/_build_info.py",
    }
    assert facts.bundled_libraries == ("libc10.so", "libtorch_python.so")
    vllm = facts.distribution("vllm")
    assert vllm is not None
    # That environment has no packaging: what cannot be evaluated is left open.
    assert [(r.name, r.installed, r.satisfied) for r in vllm.requires] == [
        ("torch", "2.9.0+cpu", None)
    ]
    # An empty file is no shared object: ldd says so, and nothing is concluded.
    (ldd,) = read_libraries(facts)
    assert not ldd.answered


def test_damaged_metadata_costs_its_own_package_only(tmp_path: Path) -> None:
    interpreter = environment(tmp_path)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    for name, metadata, entries in (
        ("~orch-2.0", "Name: torch\nVersion: 2.0\n", ""),
        ("torchx-1", "", ""),
        ("xgrammar-1", "Name: xgrammar\n\udc97\n", ""),
        ("vllm_more-1", "Name: vllm-more\nVersion: 1\n", "[a]\nno equals sign\n"),
        ("elsewhere-1", "", ""),
    ):
        folder = site / f"{name}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(metadata, errors="surrogateescape")
        (folder / "entry_points.txt").write_text(entries)
    facts, failure = read_python(str(interpreter))
    assert facts is not None, failure
    torch = facts.distribution("torch")
    assert torch is not None and torch.version == "2.9.0+cpu"
    broken = {Path(item.path).name: item.reason.partition(":")[0] for item in facts.broken}
    assert broken.pop("~orch-2.0.dist-info") == "renamed by pip to remove it"
    assert broken.pop("torchx-1.dist-info") == "no name or no version in it"
    assert set(broken) == {"xgrammar-1.dist-info", "vllm_more-1.dist-info"}


def test_pins_are_evaluated_where_packaging_is_at_hand() -> None:
    facts, failure = read_python(sys.executable)
    assert facts is not None, failure
    assert facts.machine
    assert facts.distribution("hwtune") is not None
    assert any(entry.name == "hwtune" for entry in facts.plugins)


@pytest.mark.parametrize("python", ["/no/such/python", "/bin/true"])
def test_something_that_is_no_python(python: str) -> None:
    facts, failure = read_python(python)
    assert facts is None
    assert failure is not None
    assert python in failure


def test_a_command_that_prints_without_end_is_ended(tmp_path: Path) -> None:
    endless = script(tmp_path, "endless-smi", "yes 0123456789")
    output = commands.run([endless], timeout_s=60.0)
    assert output.failure == "printed more than 8 MiB"
    assert len(output.stdout) == 8 * 2**20


def test_a_command_is_run_where_no_file_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    assert commands.run([script(tmp_path, "smi", "echo fine")]).stdout == "fine\n"
